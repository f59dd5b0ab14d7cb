"""What every pod of a job has to do."""

from __future__ import annotations

import pytest

from scaled_jobs.load import JobLoad

# 1 Mi tokens of 21 bytes over a link of 21 MiB/s: 1 s; computed in 4 s
LOAD = JobLoad(pods=2, rows=16, tokens=65536, megabits=21 * 8 * 1.048576, speed=262144)


def test_a_load_knows_its_seconds() -> None:
    assert (LOAD.compute_seconds, LOAD.link_seconds) == (4.0, pytest.approx(1.0))


def test_lengths_of_every_pod_add_up_to_about_the_mean() -> None:
    for pod in range(4):
        assert LOAD.lengths(pod).sum() == pytest.approx(16 * 65536, rel=0.05)
    assert LOAD.lengths(0).sum() != LOAD.lengths(1).sum(), "two pods that are balanced as they are move nothing"
