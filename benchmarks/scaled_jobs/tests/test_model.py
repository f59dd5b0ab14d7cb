"""The cost model against jobs whose costs are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from scaled_jobs.load import Load, Measured
from scaled_jobs.model import FAN_OUT, Model, least_squares, spread_bytes

# 1 Mi tokens of 21 bytes over a link of 21 MiB/s: 1 s; computed in 4 s
LOAD = Load(pods=2, rows=16, tokens=65536, megabits=21 * 8 * 1.048576, speed=262144)


def measured(load: Load, seconds: float) -> Measured:
    return Measured(load, "some way", seconds, steps=1, cores=0.1, sent=0, received=0, memory=0)


def test_a_load_knows_its_seconds() -> None:
    assert (LOAD.compute_seconds, LOAD.link_seconds) == (4.0, pytest.approx(1.0))


def test_lengths_of_every_pod_add_up_to_about_the_mean() -> None:
    for pod in range(4):
        assert LOAD.lengths(pod).sum() == pytest.approx(16 * 65536, rel=0.05)
    assert LOAD.lengths(0).sum() != LOAD.lengths(1).sum(), "two pods that are balanced as they are move nothing"


JOBS = [replace(LOAD, pods=pods) for pods in (2, 4, 8, 16, 32, 64)]


def test_costs_between_pods_are_found_again() -> None:
    true = Model(is_central=False, fixed=0.2, bytes_factor=1.05, shared_cores=0.03)
    points = [measured(job, true.seconds(job, own_cores=False)) for job in JOBS]
    found = Model.fit(points, is_central=False)
    assert (found.fixed, found.bytes_factor, found.shared_cores) == pytest.approx((0.2, 1.05, 0.03))


def test_what_pods_ask_of_shared_cores_is_no_part_of_a_projection() -> None:
    """0.03 s of each of 64 pods."""
    model, job = Model(is_central=False, fixed=0.2, bytes_factor=1.05, shared_cores=0.03), JOBS[-1]
    assert model.seconds(job, own_cores=False) - model.seconds(job, own_cores=True) == pytest.approx(1.92)


def test_costs_of_a_controller_are_found_again() -> None:
    """In and out over one link: 64 pods, 4 + 0.1 + 2 * 64 * 1.1."""
    true = Model(is_central=True, fixed=0.1, bytes_factor=1.1, shared_cores=0.0)
    assert true.seconds(JOBS[-1], own_cores=True) == pytest.approx(144.9, abs=1e-2)
    found = Model.fit([measured(job, true.seconds(job, own_cores=False)) for job in JOBS[::2]], is_central=True)
    thousand = replace(LOAD, pods=1024)
    assert found.seconds(thousand, own_cores=True) == pytest.approx(true.seconds(thousand, own_cores=True))


def test_layouts_go_down_the_tree_level_by_level() -> None:
    """8 rows of 32 bytes to each of one's children: the root of 2 pods has 1, that of 33 has 32, of 34 one more, whose
    parent, the root's first child, sends after the root."""
    assert spread_bytes(2, 8) == 256 and spread_bytes(FAN_OUT + 1, 8) == 256 * FAN_OUT
    assert spread_bytes(FAN_OUT + 2, 8) == 256 * (FAN_OUT + 1)


def test_no_cost_is_negative() -> None:
    """The best line through (1, 3), (2, 2), (3, 1) falls; without a slope the best is 2 everywhere."""
    terms, values = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]]), np.array([3.0, 2.0, 1.0])
    assert least_squares(terms, values).tolist() == pytest.approx([2.0, 0.0])
