"""A step's batch while it fills with groups that teach something: pure, and the same on every rank.

Groups are drawn in rounds by ordinal and taken in the order of their ordinals, so that which groups make the batch does
not depend on how many ranks drew them, nor on who finished first:

    batchSize 3     round 1 draws 7 8 9         keeps 7 9          one is missing
                    round 2 draws 10 11 (x 1.5) keeps 10 11        batch 7 9 10, surplus 11, next ordinal 12
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]


class Outcome(IntEnum):
    """What became of a drawn group. Counted from 1: 0 is a group that a rank knows nothing of."""

    KEPT = 1
    ALL_RIGHT = 2
    ALL_WRONG = 3
    ALL_SAME = 4
    OVERLONG = 5


DROPPED = tuple(outcome for outcome in Outcome if outcome is not Outcome.KEPT)

_WORDS = {
    Outcome.ALL_RIGHT: "all right",
    Outcome.ALL_WRONG: "all wrong",
    Outcome.ALL_SAME: "all of one other reward",
    Outcome.OVERLONG: "all cut off at maxResponseTokens",
}
_FIXES = {
    Outcome.ALL_RIGHT: "harder prompts",
    Outcome.ALL_WRONG: "easier prompts or a larger groupSize",
    Outcome.ALL_SAME: "a reward that tells responses apart",
    Outcome.OVERLONG: "a larger rollout.maxResponseTokens",
}


def outcomes_of(
    rewards: NDArray[np.float64],
    correct: NDArray[np.float64],
    truncated: NDArray[np.bool_],
    *,
    mask_truncated: bool,
) -> Int64:
    """The `Outcome` of every group: kept when its rewards vary.

    All [groups, group_size], of trajectories. rewards: what the advantages are made of. correct: the first reward,
    which says who is right as it does in validation. mask_truncated: those that were cut off are left out of the loss,
    so a group of nothing else teaches nothing however its rewards vary.
    """
    overlong = truncated.all(axis=1)
    right, wrong = (correct >= 1).all(axis=1), (correct <= 0).all(axis=1)
    first_that_holds = [
        (overlong & mask_truncated, Outcome.OVERLONG),
        ((rewards != rewards[:, :1]).any(axis=1), Outcome.KEPT),
        (right, Outcome.ALL_RIGHT),
        (overlong, Outcome.OVERLONG),
        (wrong, Outcome.ALL_WRONG),
    ]
    holds, found = zip(*first_that_holds, strict=True)
    outcomes: Int64 = np.select(holds, found, Outcome.ALL_SAME).astype(np.int64)
    return outcomes


@dataclass(frozen=True, slots=True)
class Filling:
    """The groups a step has so far."""

    batch_size: int
    next_ordinal: int
    """The first ordinal that was never drawn."""
    kept: Int64
    """Ordinals, ascending; what was carried over comes first."""
    num_rounds: int = 0
    num_drawn: int = 0
    num_kept: int = 0
    """Of those drawn; what was carried over is not counted again."""
    num_dropped: Mapping[Outcome, int] = field(default_factory=lambda: dict.fromkeys(DROPPED, 0))

    @property
    def num_missing(self) -> int:
        return max(0, self.batch_size - len(self.kept))

    @property
    def batch(self) -> Int64:
        """Ordinals of the step's groups."""
        return self.kept[: self.batch_size]

    @property
    def surplus(self) -> Int64:
        """Ordinals of groups that are worth keeping and have no place."""
        return self.kept[self.batch_size :]

    def draw(self, oversampling: float) -> Int64:
        """Ordinals of the next round."""
        # rounded: 10 * 1.1 is a little more than 11 in binary
        number = math.ceil(round(self.num_missing * oversampling, 6))
        return np.arange(self.next_ordinal, self.next_ordinal + number, dtype=np.int64)

    def after(self, outcomes: Int64) -> Filling:
        """With a round that `draw` began; outcomes: of every drawn group, in the order of ordinals."""
        drawn = np.arange(self.next_ordinal, self.next_ordinal + len(outcomes), dtype=np.int64)
        kept = drawn[outcomes == Outcome.KEPT]
        return replace(
            self,
            next_ordinal=self.next_ordinal + len(outcomes),
            kept=np.concatenate([self.kept, kept]),
            num_rounds=self.num_rounds + 1,
            num_drawn=self.num_drawn + len(outcomes),
            num_kept=self.num_kept + len(kept),
            num_dropped={cause: count + int((outcomes == cause).sum()) for cause, count in self.num_dropped.items()},
        )

    def explain(self, step: int) -> str:
        """Why the batch is not full, and what to do."""
        causes = sorted((cause for cause in DROPPED if self.num_dropped[cause]), key=lambda c: -self.num_dropped[c])
        dropped = ", ".join(f"{self.num_dropped[cause]} {_WORDS[cause]}" for cause in causes)
        return (
            f"step {step} needs {self.batch_size} groups whose rewards vary and has {len(self.kept)} after "
            f"{self.num_rounds} rounds of algorithm.sampling; of {self.num_drawn} groups drawn "
            f"{sum(self.num_dropped.values())} were dropped: {dropped}. Most need {_FIXES[causes[0]]}; or raise "
            "algorithm.sampling.maxRounds or oversampling, or set dynamic: false"
        )


def share_of_rank(ordinals: Int64, dp_rank: int, dp_size: int) -> Int64:
    """The part of some ordinals that one data-parallel rank works on: index i goes to rank i * dp_size // number."""
    index = np.arange(len(ordinals), dtype=np.int64)
    share: Int64 = ordinals[index * dp_size // max(len(ordinals), 1) == dp_rank]
    return share
