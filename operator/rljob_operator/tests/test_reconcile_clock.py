"""A clock that is put forward or back while jobs wait, run, restart and end."""

from __future__ import annotations

import pytest

from rljob_operator.states.situation.facts import ProgressAnswer
from rljob_operator.tests.world import TWO_PODS, World

HOUR, DAY = 3600.0, 86400.0


def answer(step: int) -> ProgressAnswer:
    return ProgressAnswer(phase="Running", attempt=1, step=step, total_steps=100)


@pytest.mark.parametrize("jump", [-DAY, -HOUR, HOUR / 2])
def test_a_gang_that_runs_runs_on_over_a_jump_and_its_next_failure_restarts_it(jump: float) -> None:
    world = World()
    world.to_running(**TWO_PODS)
    world.clock.ahead += jump
    world.settle()
    assert world.status.phase == "Running" and world.status.attempt == 1
    world.end_worker(0, 75)
    for _ in range(3):  # it is noticed, settled, and given up; its pods go; the next attempt begins
        world.wait(20)
    world.run_pods()
    world.settle()
    assert world.status.phase == "Running" and world.status.attempt == 2


def test_time_that_was_spent_is_not_taken_back_with_the_clock() -> None:
    world = World()
    world.to_running()
    world.clock.ahead -= HOUR
    world.settle()
    world.end_worker(0, 75)
    world.wait(20)
    assert world.status.restarts == 1 and world.status.active_seconds == 0


@pytest.mark.parametrize("jump", [-DAY, -HOUR])
def test_what_waits_for_a_moment_waits_no_longer_than_asked_after_the_clock_was_put_back(jump: float) -> None:
    world = World()
    world.to_running()
    world.end_worker(0, 75)
    world.settle()
    world.clock.ahead += jump
    looks = 0
    while world.status.attempt < 2 and looks < 50:
        world.wait(30)
        looks += 1
    assert world.status.attempt == 2, f"it still waits after {looks * 30} s: {world.status.phase}"


def test_a_job_that_goes_on_is_not_stalled_because_the_clock_was_put_forward() -> None:
    world = World()
    world.to_running()
    world.progress.answer = answer(1)
    world.wait(10)
    assert world.status.progress is not None and world.status.progress.step == 1
    world.progress.answer = answer(50)
    world.clock.ahead += DAY
    world.settle()
    world.wait(10)
    assert world.status.phase == "Running" and world.status.attempt == 1 and world.status.restarts == 0
