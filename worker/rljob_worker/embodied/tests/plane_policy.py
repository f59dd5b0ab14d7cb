"""A policy of tests for `worlds.Plane`: it sees the state in its prompt, and an engine that is a function decides."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np

from rljob_api.v1alpha1 import SimulatorSpec
from rljob_worker.batch import Indices
from rljob_worker.conversations.playing.tests.playing import SteppingEngine, play, tasks_of
from rljob_worker.conversations.policy import Bounds
from rljob_worker.conversations.trajectory import Trajectory
from rljob_worker.embodied.episode import Episodes
from rljob_worker.embodied.observation import Actions, Observation
from rljob_worker.embodied.simulators.pool import SimulatorPool
from rljob_worker.embodied.simulators.settings import PoolLimits
from rljob_worker.embodied.simulators.tests.pools import settings
from rljob_worker.sandbox.guardian.environment import child_environment

DIMENSIONS = 2
STEPS = 20
"""Bins of a direction: word 21 + n is n / 20."""
ZERO, WORDS = 1000, 21

Decides = Callable[[np.ndarray], np.ndarray]
"""State [4] -> actions [chunk, dimensions]."""


class PlanePolicy:
    """Action tokens of bins of 0.05; the prompt is the state in hundredths."""

    def __init__(self, chunk: int = 2) -> None:
        self.chunk = chunk
        self.seen: list[Observation] = []

    @property
    def num_tokens(self) -> int:
        return self.chunk * DIMENSIONS

    @property
    def allowed_tokens(self) -> Indices:
        return np.arange(1, 2 * STEPS + 2)

    def prompt(self, observation: Observation) -> Indices:
        assert observation.state is not None
        self.seen.append(observation)
        return np.round(observation.state * 100).astype(np.int64) + ZERO

    def actions(self, tokens: Indices) -> Actions:
        return ((tokens - WORDS) / STEPS).reshape(self.chunk, DIMENSIONS)


def towards_goal(state: np.ndarray) -> np.ndarray:
    """At most 0.5 in each direction by an action of 1, as long as it is not there; then nothing."""
    place, goal = state[:2].copy(), state[2:]
    actions = []
    for _ in range(2):
        actions.append(np.clip((goal - place) * 2, -1, 1))
        place = place + actions[-1] / 2
    return np.array(actions)


def still(state: np.ndarray) -> np.ndarray:
    return np.zeros((2, DIMENSIONS))


def engine_of(decides: Decides) -> SteppingEngine:
    """Samples what a function decides."""

    def says(row_id: int, turn: int, prompt: str) -> str:
        state = (np.array([ord(letter) for letter in prompt]) - ZERO) / 100
        words = np.round(decides(state) * STEPS).astype(int).reshape(-1) + WORDS
        return "".join(map(chr, words))

    return SteppingEngine(says)


def simulator(**fields: Any) -> SimulatorSpec:
    return SimulatorSpec.model_validate(
        {"run": "worlds:plane", "maxSteps": 6, "actionChunk": 2, "settleSteps": 0, **fields}
    )


def played(
    decides: Decides,
    spec: SimulatorSpec | None = None,
    *,
    policy: Any = None,
    tasks: tuple[str, ...] = ("",),
    group_size: int = 1,
    engine: Any = None,
    how: Any = None,
    limits: PoolLimits | None = None,
    **options: Any,
) -> list[Trajectory]:
    """Episodes of these tasks, one group each."""
    spec = spec or simulator()
    how = how or settings(stops_at_success=spec.after_success == "Stop")
    pool = SimulatorPool(how, limits or PoolLimits(processes=1, environments=2), child_environment([]))
    episodes, started = Episodes(pool, policy or PlanePolicy(), spec), list[asyncio.Future[None]]()

    async def run(task: Any, of: Any, world: Any) -> None:
        started.append(started[0] if started else asyncio.ensure_future(episodes.start()))
        await asyncio.shield(started[0])
        await episodes.play(task, of, world)

    group = [item for name in tasks for item in tasks_of("go", group_size=group_size, columns={"task": name})]
    rows = spec.num_decisions
    bounds = Bounds(turns=rows, rows=rows, response_tokens=16, row_tokens=64)
    try:
        numbered = [renumbered(item, at) for at, item in enumerate(group)]
        return play(run, numbered, engine or engine_of(decides), bounds=bounds, **options)
    finally:
        pool.close()


def renumbered(task: Any, number: int) -> Any:
    """Tasks of several groups that were made one by one."""
    from dataclasses import replace

    return replace(task, trajectory=number, group=number if task.member == 0 else task.group)
