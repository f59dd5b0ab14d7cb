"""A generation step while its batch is assembled from groups that teach something: pure, and the same on every rank.

A *draw number* owns a prompt, its randomness and the rank that generates it; a *group_id* is a place in a batch. Step t
has rounds: each draws the next numbers, as many as are missing times `oversampling`, and ends when every row of it has
ended. Batch t is the accepted groups with the lowest draw numbers, in that order, so that it does not depend on how
many ranks drew them, nor on who finished first:

    batchSize 3     round 1 draws 7 8 9         accepts 7 9        one is missing
                    round 2 draws 10 11 (x 1.5) accepts 10 11      batch 7 9 10, surplus 11, next number 12

With `rollout.partial` a round ends when every row of it has ended or has had its tokens. Groups that are not complete
are in every round until they are, in this step and the next ones, beside those that it draws:

    batchSize 3     round 1 draws 7 8 9         8 is complete              two are missing
                    round 2 goes on with 7 9, draws 10 11: 7 10            batch 7 8 10, 9 and 11 go on in the next step

A group is trained on `maxCarries` steps after it was drawn, at the latest: its rows are cut off by then, and of groups
that are so old no more are left after a step than the batches before their last step have places (`Carries`).

Every number that was drawn ends as one of: trained on, rejected by a filter, surplus, or in flight when the job ends.
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

    ACCEPTED = 1
    ALL_RIGHT = 2
    ALL_WRONG = 3
    ALL_SAME = 4
    OVERLONG = 5
    UNFINISHED = 6
    """Not complete at the end of a round."""
    OUT_OF_RANGE = 7
    """Too few of it are right, or too many, though not all."""


REJECTED = (Outcome.ALL_RIGHT, Outcome.ALL_WRONG, Outcome.ALL_SAME, Outcome.OVERLONG, Outcome.OUT_OF_RANGE)

_WORDS = {
    Outcome.ALL_RIGHT: "all right",
    Outcome.ALL_WRONG: "all wrong",
    Outcome.ALL_SAME: "all of one other reward",
    Outcome.OVERLONG: "all cut off at maxResponseTokens",
    Outcome.OUT_OF_RANGE: "right more or less often than sampling.successRange",
}
_FIXES = {
    Outcome.ALL_RIGHT: "harder prompts",
    Outcome.ALL_WRONG: "easier prompts or a larger groupSize",
    Outcome.ALL_SAME: "a reward that tells responses apart",
    Outcome.OVERLONG: "a larger rollout.maxResponseTokens",
    Outcome.OUT_OF_RANGE: "prompts of another difficulty, or a wider algorithm.sampling.successRange",
}


def outcomes_of(
    rewards: NDArray[np.float64],
    correct: NDArray[np.float64],
    truncated: NDArray[np.bool_],
    *,
    mask_truncated: bool,
    success_range: tuple[float, float] = (0.0, 1.0),
) -> Int64:
    """The `Outcome` of every group: accepted when its rewards vary.

    All [groups, group_size], of trajectories. rewards: what the advantages are made of. correct: the first reward,
    which says who is right as it does in validation. mask_truncated: those that were cut off are left out of the loss,
    so a group of nothing else teaches nothing however its rewards vary. success_range: the least and the largest part
    of a group that is right.
    """
    low, high = success_range
    share = (correct >= 1).mean(axis=1)
    varies = (rewards != rewards[:, :1]).any(axis=1)
    overlong = truncated.all(axis=1)
    right, wrong = (correct >= 1).all(axis=1), (correct <= 0).all(axis=1)
    first_that_holds = [
        (overlong & mask_truncated, Outcome.OVERLONG),
        (varies & (low <= share) & (share <= high), Outcome.ACCEPTED),
        (right, Outcome.ALL_RIGHT),
        (overlong, Outcome.OVERLONG),
        (wrong, Outcome.ALL_WRONG),
        (varies, Outcome.OUT_OF_RANGE),
    ]
    holds, result = zip(*first_that_holds, strict=True)
    outcomes: Int64 = np.select(holds, result, Outcome.ALL_SAME).astype(np.int64)
    return outcomes


@dataclass(frozen=True, slots=True)
class Carries:
    """For how many steps groups may wait with `rollout.partial`, and in which step those in flight were drawn."""

    most: int
    """Steps after the one in which a group was drawn."""
    first_numbers: tuple[int, ...]
    """First draw numbers of some steps up to this one, ascending; the last is this step's."""

    def are_too_many(self, left: Int64, unfinished: Int64, batch_size: int) -> bool:
        """Whether a further round is needed, as more groups are left than the steps have places in which they must be
        trained on, and some of them are not complete.

        left: draw numbers of all groups that the batch leaves. maxCarries 2, batchSize 4: of those that were drawn in
        this step 8 may be left, of those of the step before 4, and of older ones none.
        """
        ends = [*self.first_numbers[1:], None]
        for age, end in enumerate(reversed(ends)):
            places = max(0, self.most - age) * batch_size
            older, open_ones = (numbers if end is None else numbers[numbers < end] for numbers in (left, unfinished))
            if len(older) > places and len(open_ones):
                return True
        return False


@dataclass(frozen=True, slots=True)
class Assembly:
    """What a generation step has drawn so far."""

    batch_size: int
    next_number: int
    """The first draw number that was never drawn."""
    accepted: Int64
    """Draw numbers of complete groups, ascending."""
    unfinished: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    """Draw numbers of groups that are not complete, ascending."""
    carries: Carries | None = None
    """None without `rollout.partial`."""
    num_rounds: int = 0
    num_drawn: int = 0
    num_accepted: int = 0
    """Groups accepted in this step; what was accepted before is not counted again."""
    num_rejected: Mapping[Outcome, int] = field(default_factory=lambda: dict.fromkeys(REJECTED, 0))

    @property
    def num_missing(self) -> int:
        return max(0, self.batch_size - len(self.accepted))

    @property
    def batch(self) -> Int64:
        """Draw numbers of the step's groups, in the order of their places."""
        return self.accepted[: self.batch_size]

    @property
    def surplus(self) -> Int64:
        """Draw numbers of accepted groups that have no place."""
        return self.accepted[self.batch_size :]

    @property
    def has_work(self) -> bool:
        """Whether the step has another round. With `rollout.partial` every step has one."""
        if self.num_missing or self.carries is None:
            return self.num_missing > 0
        left = np.concatenate([self.surplus, self.unfinished])
        return self.num_rounds == 0 or self.carries.are_too_many(left, self.unfinished, self.batch_size)

    def draw(self, oversampling: float) -> Int64:
        """Draw numbers that the next round begins with, beside those that are unfinished. Of these and of complete
        groups no more are in flight than the batches have places in which they may be trained on."""
        # rounded: 10 * 1.1 is a little more than 11 in binary
        number = math.ceil(round(self.num_missing * oversampling, 6))
        if self.carries is not None:
            in_flight = len(self.accepted) + len(self.unfinished)
            number = max(0, min(number, (self.carries.most + 1) * self.batch_size - in_flight))
        return np.arange(self.next_number, self.next_number + number, dtype=np.int64)

    def after(self, outcomes: Int64) -> Assembly:
        """With a round that `draw` began; outcomes: of the unfinished groups and of every drawn one, in the order of
        draw numbers."""
        num_drawn = len(outcomes) - len(self.unfinished)
        drawn = np.arange(self.next_number, self.next_number + num_drawn, dtype=np.int64)
        numbers = np.concatenate([self.unfinished, drawn])
        accepted = numbers[outcomes == Outcome.ACCEPTED]
        return replace(
            self,
            next_number=self.next_number + num_drawn,
            accepted=np.sort(np.concatenate([self.accepted, accepted])),
            unfinished=numbers[outcomes == Outcome.UNFINISHED],
            num_rounds=self.num_rounds + 1,
            num_drawn=self.num_drawn + num_drawn,
            num_accepted=self.num_accepted + len(accepted),
            num_rejected={cause: count + int((outcomes == cause).sum()) for cause, count in self.num_rejected.items()},
        )

    def explain(self, step: int) -> str:
        """Why the batch is not full, and what to do."""
        causes = sorted((cause for cause in REJECTED if self.num_rejected[cause]), key=lambda c: -self.num_rejected[c])
        dropped = ", ".join(f"{self.num_rejected[cause]} {_WORDS[cause]}" for cause in causes)
        return (
            f"step {step} needs {self.batch_size} groups whose rewards vary and has {len(self.accepted)} after "
            f"{self.num_rounds} rounds of algorithm.sampling; of {self.num_drawn} groups drawn "
            f"{sum(self.num_rejected.values())} were dropped: {dropped}. Most need {_FIXES[causes[0]]}; or raise "
            "algorithm.sampling.maxRounds or oversampling, or set dynamic: false"
        )


def share_of_rank(numbers: Int64, dp_rank: int, dp_size: int) -> Int64:
    """The part of some draw numbers that one data-parallel rank works on: index i is of rank i * dp_size // number."""
    index = np.arange(len(numbers), dtype=np.int64)
    share: Int64 = numbers[index * dp_size // max(len(numbers), 1) == dp_rank]
    return share
