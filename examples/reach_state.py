"""A cursor in a square that is to be moved to one of four targets; the simulator of reach-state.yaml."""

from types import SimpleNamespace

import numpy as np

TARGETS = {
    "upper-left": (-0.6, 0.6),
    "upper-right": (0.6, 0.6),
    "lower-left": (-0.6, -0.6),
    "lower-right": (0.6, -0.6),
}
STEP = 0.25
"""How far an action of 1 moves the cursor."""
NEAR = 0.25
"""How near to the target, left and right and up and down, is near enough."""


class Reach:
    """An environment of gymnasium's API: the square goes from -1 to 1."""

    action_space = SimpleNamespace(low=-np.ones(2, np.float32), high=np.ones(2, np.float32))

    def tasks(self):
        """What the job trains on, and is evaluated on: one task for each target."""
        return [{"task": name, "instruction": f"move to the {name.replace('-', ' ')}"} for name in TARGETS]

    def reset(self, seed, options):
        """Begin near the middle. options: `task`, the name of a target."""
        self.target = np.array(TARGETS[options["task"]])
        self.place = np.random.default_rng(seed).uniform(-0.2, 0.2, 2)
        return self.seen(), {}

    def step(self, action):
        """Move, no further than the edge."""
        self.place = np.clip(self.place + STEP * action, -1.0, 1.0)
        is_near = bool((np.abs(self.place - self.target) <= NEAR).all())
        return self.seen(), 0.0, False, False, {"success": is_near}

    def seen(self):
        """Four numbers: where the cursor is, and where its target."""
        return np.concatenate([self.place, self.target]).astype(np.float32)
