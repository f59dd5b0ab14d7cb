"""The simulator of reach-pictures.yaml, and the encoder of its videos."""

from types import SimpleNamespace

import numpy as np

from rljob_worker.tiny.acting import plane


class Reach:
    """A cursor in a plane, which each action moves a little; four targets, each of a task."""

    action_space = SimpleNamespace(low=-np.ones(2, np.float32), high=np.ones(2, np.float32))

    def tasks(self):
        """What there is to do; validation plays each of them several times."""
        return [{"task": task, "instruction": plane.instruction(task)} for task in plane.TARGETS]

    def reset(self, seed, options):
        """Begin somewhere, as the seed says."""
        self.task = options["task"]
        self.place, self.left = plane.start(np.random.default_rng(seed), self.task), 0.0
        return self.seen(), {}

    def step(self, action):
        """Move the cursor. Rewards of an episode add up to minus the distance at its end."""
        self.place, before = plane.moved(self.place, action), self.left
        self.left = plane.distance(self.place, self.task)
        success = plane.is_reached(self.place, self.task)
        return self.seen(), before - self.left, False, False, {"success": success}

    def seen(self):
        return {"front": plane.drawn(self.place)}


def make():
    """As `rollout.simulator.run` names it."""
    return Reach()


SIZE = 8
"""Of a frame as it is compared."""
LATER = 32.0
"""How many times as much a frame counts as the one before it: what matters is where the cursor ends."""


def encode(frames):
    """Where the cursor is, on average over the frames: the middle of what is white in 8 x 8 cells, so that what is
    twice as far away is twice as far from it. Two numbers, so that successes of a task, which end around its target,
    are one cluster around it rather than one for each way there.

    frames: uint8 [8, 64, 64, 3]. Returns 2 numbers: to the right, and down.
    """
    white = frames.min(axis=3) / 255.0  # targets have a channel that is 0
    side = frames.shape[1] // SIZE
    cells = white.reshape(len(frames), SIZE, side, SIZE, side).mean(axis=(2, 4))
    cells /= cells.sum(axis=(1, 2), keepdims=True)
    places = np.stack([cells.sum(axis=1), cells.sum(axis=2)], axis=1) @ np.arange(SIZE)
    return np.average(places, axis=0, weights=LATER ** np.arange(len(frames)))
