"""A plane with a cursor and four targets, drawn in numpy, and a script that moves the cursor too little. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Place = NDArray[np.float64]
"""[2]: to the right and down, -1 to 1."""

SIDE = 64
"""Pixels of a picture's side."""
STEP = 0.06
"""How far an action of 1 moves the cursor along its axis."""
NEAR = 0.15
"""The cursor has reached a target that is at most this far away, on both axes."""
STEPS = 8
"""Actions of an episode."""
STARTS = (0.2, 0.5)
"""Between these an episode begins away from its target, on the axis on which it is farther."""
FAR_SHARE = 0.25
"""Share of episodes that begin where the target cannot be reached: they differ by how near they come alone."""
FAR_STARTS = (STEPS * STEP + NEAR, 2.0)
"""As `STARTS`, of these."""
EDGE = 0.95
"""Where episodes begin on either axis, at most."""
MOVES = 0.25
"""How often the script moves along an axis that is not reached yet."""

TARGETS: Mapping[str, tuple[float, float]] = {  # far from the edges: episodes begin on all sides of them
    "red": (-0.45, -0.45),
    "green": (0.45, -0.45),
    "blue": (-0.45, 0.45),
    "yellow": (0.45, 0.45),
}
_COLOURS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255), "yellow": (255, 255, 0)}
_TARGET_HALF, _CURSOR_HALF = 5, 3
"""Pixels of half a square's side."""


def instruction(task: str) -> str:
    """What is to be done, in words."""
    return f"reach the {task} target"


def start(rng: np.random.Generator, task: str) -> Place:
    """Where an episode begins."""
    nearest, farthest = FAR_STARTS if rng.random() < FAR_SHARE else STARTS
    while True:
        place = rng.uniform(-EDGE, EDGE, 2)
        if nearest < np.abs(place - TARGETS[task]).max() < farthest:
            return place


def moved(place: Place, action: Place) -> Place:
    """Where an action [2], -1 to 1, takes the cursor: not out of the plane."""
    return np.clip(place + STEP * np.clip(action, -1.0, 1.0), -1.0, 1.0)


def is_reached(place: Place, task: str) -> bool:
    """Whether the cursor is at its target."""
    return bool(np.abs(place - TARGETS[task]).max() <= NEAR)


def distance(place: Place, task: str) -> float:
    """From the cursor to its target."""
    return float(np.linalg.norm(place - TARGETS[task]))


def drawn(place: Place) -> NDArray[np.uint8]:
    """The picture, [64, 64, 3]: targets in their colours, and the cursor in white above them."""
    picture = np.zeros((SIDE, SIDE, 3), np.uint8)
    for task, target in TARGETS.items():
        _square(picture, np.array(target), _TARGET_HALF, _COLOURS[task])
    _square(picture, place, _CURSOR_HALF, (255, 255, 255))
    return picture


def _square(picture: NDArray[np.uint8], place: Place, half: int, colour: tuple[int, int, int]) -> None:
    across, down = np.round((place + 1.0) / 2.0 * (SIDE - 1)).astype(int)
    picture[max(0, down - half) : down + half + 1, max(0, across - half) : across + half + 1] = colour


def scripted(rng: np.random.Generator, place: Place, task: str, chunk: int, moving: float = MOVES) -> Place:
    """Actions [chunk, 2] of the script: towards the target along each axis, which moves with this probability."""
    actions = np.zeros((chunk, 2))
    for action in actions:
        left = np.array(TARGETS[task]) - place
        moves = (np.abs(left) > STEP / 2) & (rng.random(2) < moving)
        action[:] = np.where(moves, np.sign(left), 0.0)
        place = moved(place, action)
    return actions
