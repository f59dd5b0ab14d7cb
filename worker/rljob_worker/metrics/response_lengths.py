"""How long the responses of a run are, in a sentence: what `rollout.partial` would save, or what it carries on.

A step without it ends with its longest response. With it a step takes about two rounds, however lengths are spread: the
first begins with nearly a batch of groups, the second with those that are still missing. So

    tokens that a step decodes in turn     longest               ->  about 2 * tokensPerRound
    share of idle places in a round        1 - mean / longest    ->  about tokensPerRound / (tokensPerRound + 2 * mean)

and mean and longest, which merge over ranks, are all that a proposal needs. docs/long-tail.md has the reasoning.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from rljob_worker.metrics.idle import RECENT_STEPS, mean_at, steps_text

LEAST_SPREAD = 4.0
"""How many times the mean the longest response has to be for a proposal. tokensPerRound is at most 1.42 times the mean,
so that two rounds are 2.83 means: no less than 29 % of the decode steps of such a step are saved."""
LEAST_LONGEST = 256
"""Tokens that the longest response has to have for a proposal: what a round costs beside its tokens is not saved."""
MOST_CARRIES = 1024
"""The largest `rollout.partial.maxCarries` that a job may have."""

Record = Mapping[str, Any]


def has_lengths(record: Record) -> bool:
    """Whether a line of metrics.jsonl is a step that has drawn responses."""
    return record.get("response_length/mean") is not None and record.get("response_length/max") is not None


def is_carried(record: Record) -> bool:
    """Whether a line of metrics.jsonl is a step with `rollout.partial`."""
    return record.get("partial/age_mean") is not None


def lengths_sentence(records: Iterable[Record], max_response_tokens: int) -> str:
    """How lengths were spread over the last RECENT_STEPS steps and what to do about it, or with `rollout.partial` what
    was carried on; "" where no record has lengths. max_response_tokens: of the job."""
    recent = deque(filter(has_lengths, records), maxlen=RECENT_STEPS)
    if not recent:
        return ""
    return carried_sentence(recent) or f"{_spread(recent)}{_proposal(recent, max_response_tokens)}"


def carried_sentence(records: Iterable[Record]) -> str:
    """What `rollout.partial` carried on, over the last RECENT_STEPS records of steps with it; "" where none is.

    12.5 groups with 40.0 unfinished responses go on after a step; responses of a batch began 0.80 steps before it in
    the mean and 4 at most (mean of steps 41 to 60)
    """
    recent = deque(filter(is_carried, records), maxlen=RECENT_STEPS)
    if not recent:
        return ""
    groups, rows = (mean_at(recent, f"partial/{name}_unfinished") or 0.0 for name in ("groups", "rows"))
    oldest = max(record.get("partial/age_max") or 0.0 for record in recent)
    number_cut = sum(record.get("partial/rows_cut_off") or 0.0 for record in recent)
    cut = f"; {number_cut:.0f} were cut off, which a larger rollout.partial.maxCarries lets go on" if number_cut else ""
    return (
        f"{groups:.1f} groups with {rows:.1f} unfinished responses go on after a step; responses of a batch began "
        f"{mean_at(recent, 'partial/age_mean'):.2f} steps before it in the mean and {oldest:.0f} at most{cut} "
        f"({steps_text(recent)})"
    )


def partial_settings(mean: float, max_response_tokens: int) -> tuple[int, int]:
    """tokensPerRound and maxCarries for responses of a mean length: the power of two that is nearest to the mean by
    its ratio, and the carries with which no response is cut off that would not be without rounds."""
    tokens = 2 ** max(0, round(math.log2(mean)))
    while (carries := math.ceil(max_response_tokens / tokens) - 1) > MOST_CARRIES:
        tokens *= 2
    return tokens, max(1, carries)


def _spread(recent: Sequence[Record]) -> str:
    longest = max(record["response_length/max"] for record in recent)
    return (
        f"responses have {_mean_length(recent):,.0f} tokens in the mean and up to {longest:,.0f}: a step decodes its "
        f"longest for {_ratio(recent):.1f} times as long as the mean ({steps_text(recent)})"
    )


def _proposal(recent: Sequence[Record], max_response_tokens: int) -> str:
    longest = max(record["response_length/max"] for record in recent)
    if _ratio(recent) < LEAST_SPREAD or longest < LEAST_LONGEST:
        return ""
    tokens, carries = partial_settings(_mean_length(recent), max_response_tokens)
    last = math.ceil(longest / tokens) - 1
    return (
        f"; rollout.partial: {{tokensPerRound: {tokens}, maxCarries: {carries}}} would end it after about two rounds "
        f"of {tokens} tokens, and carry its longest on for up to {last} steps: docs/long-tail.md"
    )


def _mean_length(recent: Iterable[Record]) -> float:
    return fmean(record["response_length/mean"] for record in recent)


def _ratio(recent: Sequence[Record]) -> float:
    """The mean of the longest responses of steps over the mean response; 1 where all are empty."""
    mean = _mean_length(recent)
    return fmean(record["response_length/max"] for record in recent) / mean if mean else 1.0
