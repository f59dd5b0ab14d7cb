"""What a policy sees before a decision, and what makes a decision's tokens of it.

observation ── ActionPolicy.prompt ──▶ tokens, pictures, state ── the engine ──▶ action tokens
                                                                                      │
simulator ◀── continuous actions, one a step ◀── ActionPolicy.actions ────────────────┘
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rljob_worker.batch import Indices

Actions = NDArray[np.float64]
"""[actions of a decision, dimensions], in the units of the simulator."""


@dataclass(frozen=True, slots=True, eq=False)
class Observation:
    """What the simulator shows before a decision."""

    pictures: tuple[bytes, ...]
    """Encoded as PNG, one of each camera, in the order in which the simulator has them."""
    state: NDArray[np.float32] | None
    """[numbers]: joints, gripper or whatever else the simulator measures; None where there is none."""
    instruction: str
    """What is to be done, in words."""


class ActionPolicy(Protocol):
    """How one model reads observations and writes actions. A decision is a fixed number of action tokens."""

    @property
    def num_tokens(self) -> int:
        """Action tokens of a decision: actions of a decision times dimensions of an action."""
        ...

    @property
    def allowed_tokens(self) -> Indices:
        """int64 [words], ascending: the action words; the engine samples no others."""
        ...

    def prompt(self, observation: Observation) -> Indices:
        """int64 [tokens] before the action tokens, with a placeholder for each token of a picture. Raises BadData for
        an observation that the model cannot read."""
        ...

    def actions(self, tokens: Indices) -> Actions:
        """The continuous actions of a decision's tokens, int64 [num_tokens], un-normalised. Raises BadData for tokens
        that are no action words."""
        ...
