"""Three ways to make batches of responses with a long tail of lengths, and what they come to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from long_tail.engine import GROUP_SIZE, Lengths, TimedEngine, carries_of, generating_stage
from long_tail.slots import Int64, Slots

OVERSAMPLING = 2
"""Groups that discard-and-refill begins with, for each that it trains on."""
SKIPPED, MEASURED = 60, 100
"""Steps before the steady state, and steps of it."""


@dataclass(frozen=True, slots=True)
class Case:
    """What is run."""

    batch_size: int
    policy: str
    """Wait: for every row of a batch. Carry: `rollout.partial`. Discard: what is late."""
    quantum: int | None = None
    """`tokensPerRound` of Carry."""
    prefill_cost: float = 0.0
    """Virtual time for each token that a row brings when it gets a slot."""

    @property
    def num_late(self) -> int:
        """Steps at the end of a run whose groups may still be on their way."""
        return 0 if self.quantum is None else carries_of(self.quantum)


@dataclass(frozen=True, slots=True)
class Step:
    """What a step drew and trained on."""

    num_drawn: int
    """Groups drawn in all steps so far."""
    trained: Int64
    """Numbers of the batch's groups, in the order in which they were drawn."""
    slots: Slots
    """All that was decoded up to the end of the step."""
    age_mean: float = 0.0
    """Steps since a row of the batch began."""
    age_max: float = 0.0


@dataclass(frozen=True, slots=True)
class TailFigures:
    """What a run came to."""

    tokens_per_time: float
    """Tokens of the batches of the steady state, per unit of virtual time."""
    idle_share: float
    """Slots x time without a row in the steady state, of all slots x time."""
    trained_share: float
    """Groups that were trained on, of those drawn before the last `num_late` steps."""
    correlation: float
    """Of the logarithm of such a group's tokens with its having been trained on; 0 where all were."""
    age_mean: float
    age_max: float


def run_case(case: Case, seed: int) -> TailFigures:
    """Figures of a run whose lengths follow from the seed."""
    lengths, slots = Lengths(seed), Slots(prefill_cost=case.prefill_cost)
    make = discarding_steps if case.policy == "Discard" else stage_steps
    return figures_of(list(make(case, lengths, slots)), lengths, case.num_late)


def stage_steps(case: Case, lengths: Lengths, slots: Slots) -> Iterator[Step]:
    """Steps of the project's own stage."""
    engine = TimedEngine(lengths, slots)
    stage, context = generating_stage(engine, case.batch_size, case.quantum)
    num_drawn = 0
    for step in range(1, SKIPPED + MEASURED + 1):
        engine.version = step - 1
        result = stage.run(None, replace(context, step=step))
        figures = {name: scalar.value for name, scalar in result.metrics.items()}
        assert not figures.get("partial/rows_cut_off"), "a response was cut off by maxCarries"
        num_drawn += round(figures.get("sampling/groups_drawn", case.batch_size))
        responses = result.batch["response_ids"]
        assert responses.offsets is not None
        trained = responses.values[responses.offsets[:-1:GROUP_SIZE]] // GROUP_SIZE  # a token is its row's number
        ages = (figures.get("partial/age_mean", 0.0), figures.get("partial/age_max", 0.0))
        yield Step(num_drawn, trained, replace(slots), *ages)


def discarding_steps(case: Case, lengths: Lengths, slots: Slots) -> Iterator[Step]:
    """Steps that begin with too many groups, end with the batch's last complete one, and drop all others."""
    num_groups = OVERSAMPLING * case.batch_size
    for step in range(SKIPPED + MEASURED):
        first = step * num_groups
        tokens = lengths.of(np.arange(first * GROUP_SIZE, (first + num_groups) * GROUP_SIZE))
        missing = np.full(num_groups, GROUP_SIZE)
        for ended in slots.decode(tokens, np.ones_like(tokens)):
            missing -= np.bincount(ended // GROUP_SIZE, minlength=num_groups)
            if np.count_nonzero(missing == 0) >= case.batch_size:
                break
        trained = first + np.flatnonzero(missing == 0)[: case.batch_size]
        yield Step(first + num_groups, trained, replace(slots))


def figures_of(steps: list[Step], lengths: Lengths, num_late: int) -> TailFigures:
    """num_late: steps at the end whose groups may still be on their way."""
    steady, before = steps[SKIPPED:], steps[SKIPPED - 1]
    decoded = steps[-1].slots.since(before.slots)
    num_tokens = int(lengths.of_groups(np.concatenate([step.trained for step in steady])).sum())
    numbers = np.arange(steps[-1 - num_late].num_drawn)
    is_trained = np.isin(numbers, np.concatenate([step.trained for step in steps]))
    return TailFigures(
        tokens_per_time=num_tokens / decoded.time,
        idle_share=decoded.idle_share,
        trained_share=float(is_trained.mean()),
        correlation=correlation(np.log(lengths.of_groups(numbers)), is_trained),
        age_mean=float(np.mean([step.age_mean for step in steady])),
        age_max=max(step.age_max for step in steady),
    )


def correlation(values: np.ndarray, happened: np.ndarray) -> float:
    """Pearson's, of numbers with what is true or false; 0 where that is the same for all."""
    if happened.all() or not happened.any():
        return 0.0
    return float(np.corrcoef(values, happened)[0, 1])
