"""Whole jobs in virtual time: on any failure every wait ends in time, with what was put or by the right name."""

from collections.abc import Iterable, Iterator

import pytest

from rljob_worker.databuffer.tests.simulation.scenario import Run, flip, run_of

NUM_RUNS = 40
NUM_LONG_RUNS = 2_000
NUM_PARTS = 8
"""Of the long form, so that they can be shared out."""


def failures(runs: Iterable[Run]) -> list[str]:
    """For each run that is not right: how to repeat it and what is wrong. No run is kept: each has megabytes."""
    return [
        f"run_of({run.seed!r}), {run.fault}: {'; '.join(problems)}" for run in runs if (problems := run.go().problems())
    ]


def part(number: int) -> range:
    return range(number, NUM_LONG_RUNS, NUM_PARTS)


def test_every_wait_ends_with_what_was_put_or_by_the_right_name():
    assert failures(run_of(seed) for seed in range(NUM_RUNS)) == []


@pytest.mark.slow
@pytest.mark.parametrize("number", range(NUM_PARTS))
def test_every_wait_ends_in_a_long_search(number: int):
    assert failures(run_of(seed) for seed in part(number)) == []


def test_flipped_bits_change_nothing_or_are_named():
    assert failures(run_of(f"flip {seed}", flip) for seed in range(NUM_RUNS // 4)) == []


@pytest.mark.slow
@pytest.mark.parametrize("number", range(NUM_PARTS))
def test_flipped_bits_in_a_long_search(number: int):
    num_flipped = 0

    def runs() -> Iterator[Run]:
        nonlocal num_flipped
        for seed in range(number, NUM_LONG_RUNS // 4, NUM_PARTS):
            run = run_of(f"flip {seed}", flip)
            yield run
            num_flipped += run.num_flipped

    assert failures(runs()) == []
    assert num_flipped >= NUM_LONG_RUNS // NUM_PARTS


def test_a_seed_says_everything_that_happens():
    def story(seed: int) -> tuple[float, list[str]]:
        run = run_of(seed).go()
        return run.job.loop.now, [f"{worker}: {worker.waits} {worker.error}" for worker in run.workers]

    for seed in range(5):
        assert story(seed) == story(seed)
