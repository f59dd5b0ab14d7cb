"""Decisions of Meta-World's own script for reach-v3, which here moves each axis every other time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rljob_worker.embodied.adapters.gymnasium_environment import MUJOCO
from rljob_worker.embodied.adapters.metaworld_environment import metaworld
from rljob_worker.embodied.adapters.packages import imported
from rljob_worker.embodied.observation import Observation
from rljob_worker.tiny.acting.cloning import Shown

TASK = "reach-v3"
STATE_SIZE, DIMENSIONS, CHUNK, BINS = 39, 4, 8, 5
STEPS = 64
"""Steps of an episode."""
MOVES = 0.5
"""How often the script moves along an axis."""


def arm_decisions(seed: int) -> Iterator[Shown]:
    """Endless decisions, episode by episode. Raises InvalidJob without the package."""
    environment = metaworld([TASK])
    script = imported("metaworld.policies", f"'metaworld==3.0.0' {MUJOCO}").SawyerReachV3Policy()
    rng = np.random.default_rng([seed, 41])
    while True:
        observation, _ = environment.reset(int(rng.integers(2**31)), {"task": TASK})
        for _ in range(STEPS // CHUNK):
            shown, actions = np.asarray(observation["state"], np.float32), np.zeros((CHUNK, DIMENSIONS))
            for action in actions:
                wanted = np.clip(script.get_action(observation["state"]), -1.0, 1.0)
                action[:] = wanted * (rng.random(DIMENSIONS) < MOVES)
                observation, *_ = environment.step(action.astype(np.float32))
            yield Shown(Observation((), shown, "reach"), actions)
