"""The cost model against jobs whose costs are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from scaled_jobs.load import Load, Measured
from scaled_jobs.model import Model, least_squares

# 1 Mi tokens of 21 bytes over a link of 21 MiB/s: 1 s; computed in 4 s
LOAD = Load(pods=2, rows=16, tokens=65536, megabits=21 * 8 * 1.048576, speed=262144)


def measured(load: Load, seconds: float) -> Measured:
    return Measured(load, "some way", seconds, steps=1, cores=0.1, sent=0, received=0, memory=0)


def test_a_load_knows_its_seconds() -> None:
    assert (LOAD.compute_seconds, LOAD.link_seconds) == (4.0, pytest.approx(1.0))


def test_lengths_of_every_pod_add_up_to_the_mean() -> None:
    for pod in range(4):
        assert LOAD.lengths(pod).sum() == pytest.approx(16 * 65536, rel=1e-3)


def test_costs_between_pods_are_found_again() -> None:
    """0.2 s fixed, 1.05 of the (N-1)/N of all bytes that leave, 0.03 s a doubling: 64 pods, 4 + 0.2 + 1.0336 + 0.18."""
    true = Model(is_central=False, fixed=0.2, bytes_factor=1.05, doubling=0.03)
    assert true.seconds(replace(LOAD, pods=64)) == pytest.approx(5.4136, abs=1e-3)
    jobs = [replace(LOAD, pods=pods) for pods in (2, 4, 8, 16, 32, 64)]
    found = Model.fit([measured(job, true.seconds(job)) for job in jobs], is_central=False)
    assert (found.fixed, found.bytes_factor, found.doubling) == pytest.approx((0.2, 1.05, 0.03))


def test_costs_of_a_controller_are_found_again() -> None:
    """In and out over one link: 64 pods, 4 + 0.1 + 2 * 64 * 1.1."""
    true = Model(is_central=True, fixed=0.1, bytes_factor=1.1, doubling=0.0)
    assert true.seconds(replace(LOAD, pods=64)) == pytest.approx(144.9, abs=1e-2)
    jobs = [replace(LOAD, pods=pods) for pods in (2, 8, 32)]
    assert Model.fit([measured(job, true.seconds(job)) for job in jobs], is_central=True).seconds(
        replace(LOAD, pods=1024)
    ) == pytest.approx(true.seconds(replace(LOAD, pods=1024)))


def test_no_cost_is_negative() -> None:
    """The best line through (1, 3), (2, 2), (3, 1) falls; without a slope the best is 2 everywhere."""
    terms, values = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]]), np.array([3.0, 2.0, 1.0])
    assert least_squares(terms, values).tolist() == pytest.approx([2.0, 0.0])
