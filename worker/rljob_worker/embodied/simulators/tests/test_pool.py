"""Processes of simulators: real ones, that hang, die and are replaced."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rljob_worker.embodied.simulators.pool import SimulatorPool
from rljob_worker.embodied.simulators.settings import Frame, PoolLimits, SimulatorFailed
from rljob_worker.embodied.simulators.tests.pools import settings, with_pool
from rljob_worker.errors import InvalidJob

FAULTS = {"faults": {"bad": "raise", "exits": "exit", "asks": "ask", "dies": "die", "hangs": "hang"}}
PUSH = np.full((1, 2), 0.1)


async def played(pool: SimulatorPool, task: str = "", seed: int = 1, steps: int = 3) -> list[Frame]:
    """An episode to its end, frame by frame."""
    session = pool.session()
    try:
        frames = [await session.reset(seed, {"task": task})]
        for _ in range(steps):
            frames.append(await session.step(PUSH))
    finally:
        session.close()
    return frames


def test_episodes_share_processes_and_none_sees_another() -> None:
    async def work(pool: SimulatorPool) -> list[list[Frame]]:
        return await asyncio.gather(*(played(pool, seed=seed) for seed in (1, 2, 3, 4, 1)))

    how = settings(options={"pictures": True}, cameras=("front",))
    one, two, *_, again = with_pool(work, how, PoolLimits(processes=2, environments=2))
    assert [frame.digest for frame in one] == [frame.digest for frame in again]
    assert one[0].digest != two[0].digest and [frame.num_steps for frame in one] == [0, 1, 1, 1]
    state = one[-1].state
    assert state is not None and state[:2] == pytest.approx([0.15, 0.15]) and len(one[-1].pictures) == 1


@pytest.mark.parametrize(
    ("task", "cause", "words"),
    [
        ("bad", "raised", "ValueError: the arm is stuck at .*worlds.py"),
        ("exits", "raised", "SystemExit: 3"),
        ("asks", "raised", "EOFError"),
        ("dies", "died", "exit code 9"),
        ("hangs", "timed_out", "1 steps took longer than rollout.simulator.stepSeconds 0.3 allows"),
    ],
)
def test_an_episode_that_goes_wrong_costs_itself_alone(task: str, cause: str, words: str) -> None:
    async def work(pool: SimulatorPool) -> tuple[Any, list[Frame], list[Frame]]:
        return await asyncio.gather(played(pool, task), played(pool), played(pool), return_exceptions=True)  # type: ignore[return-value]

    limits = PoolLimits(processes=1, environments=3, step_seconds=0.3)
    failure, *others = with_pool(work, settings(options=FAULTS), limits)
    assert isinstance(failure, SimulatorFailed) and failure.cause == cause
    with pytest.raises(SimulatorFailed, match=words):
        raise failure
    assert [frame.digest for frame in others[0]] == [frame.digest for frame in others[1]] and len(others[0]) == 4


def test_an_episode_whose_process_is_killed_goes_on_in_another_one_as_if_it_had_not_been() -> None:
    async def work(pool: SimulatorPool) -> tuple[list[Frame], list[Frame]]:
        session = pool.session()
        frames = [await session.reset(1, {}), await session.step(PUSH)]
        for pid in processes_of(os.getpid(), is_simulator):
            os.kill(pid, signal.SIGKILL)
        frames += [await session.step(PUSH), await session.step(PUSH)]
        session.close()
        return frames, await played(pool)

    disturbed, undisturbed = with_pool(work)
    assert [frame.digest for frame in disturbed] == [frame.digest for frame in undisturbed]


def test_a_hundred_waiting_environments_need_few_processes() -> None:
    async def work(pool: SimulatorPool) -> int:
        sessions = [pool.session() for _ in range(100)]
        await asyncio.gather(*(session.reset(1, {}) for session in sessions))
        frames = await asyncio.gather(*(session.step(PUSH) for session in sessions))
        return len({frame.digest for frame in frames})

    assert with_pool(work, None, PoolLimits(processes=2, environments=50)) == 1


@pytest.mark.parametrize(
    ("run", "words"),
    [
        ("absent", "makes no environment: ModuleNotFoundError: No module named 'arms'"),
        ("thing", "returned a object, which has no reset"),
        ("planes", "did you mean plane or Plane"),
    ],
)
def test_a_simulator_that_cannot_be_made_is_refused_at_the_start(run: str, words: str) -> None:
    async def work(pool: SimulatorPool) -> None:
        raise AssertionError("started")

    with pytest.raises(InvalidJob, match=words):
        with_pool(work, settings(run))


def test_tasks_are_listed_as_rows_of_data() -> None:
    tasks = with_pool(lambda pool: pool.tasks())
    assert tasks == [{"task": "left", "instruction": "go left"}, {"task": "right", "instruction": "go right"}]


def is_simulator(command: str) -> bool:
    return "sandbox.guardian.guarding" in command


def processes_of(parent: int, chosen: Callable[[str], bool]) -> list[int]:
    """Forks of the guardian of this process."""
    children = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:
                    children[int(name)] = int(file.read().rpartition(")")[2].split()[1])
            except OSError:
                continue
    guardians = [pid for pid, of in children.items() if of == parent and chosen(command_of(pid))]
    return [pid for pid, of in children.items() if of in guardians]


def command_of(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline") as file:
            return file.read()
    except OSError:
        return ""
