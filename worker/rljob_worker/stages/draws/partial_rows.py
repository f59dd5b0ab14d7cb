"""A round of `rollout.partial`: rows that begin and rows that go on, of which each has some new tokens at most.

A group is complete when all of its rows have ended. Until then its rows wait for the next round where they were made,
those that have ended beside those that have not:

    tokensPerRound 4    round 1   row 0 ends with 3 tokens, row 1 has 4
                        round 2   row 1 goes on from its 4 tokens, and ends with 6: the group is complete

A row that goes on brings its tokens to the engine, with their log-probs and versions, and keeps its draws: it has the
tokens that it would have had without an interruption, if the weights were the same. Its keys and values are made anew.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rljob_api.v1alpha1 import RLJobSpec
from rljob_worker.batch import Batch, Column
from rljob_worker.batch.gather import offsets_of
from rljob_worker.batch.row_index import Int64
from rljob_worker.engines.picture_reader import prompt_pictures
from rljob_worker.engines.rollout.job_sampling import max_tokens_of
from rljob_worker.engines.rollout.requests import Ending, PartialResponses, Requests, Sampling

UNFINISHED = "unfinished"
"""Column of a row that may go on: whether it has not ended."""
DRAWN_STEP = "drawn_step"
"""Column of a row that may go on: the step in which it began."""


@dataclass(frozen=True, slots=True)
class PartialRound:
    """What one rank decodes in a round."""

    rows: Batch
    """Rows that go on, and behind them rows that begin, with the columns of their prompts alone."""
    begun: PartialResponses | None
    """What the rows have already; None where all begin."""
    drawn_steps: Int64
    """[rows], when each began."""
    limits: Int64
    """[rows]: tokens of the longest response."""
    bounds: Int64
    """[rows]: tokens that each may have at the end of the round."""
    is_last: np.ndarray
    """bool [rows]: the round is the row's last, whether or not it ends in it."""
    ended: Batch | None
    """Rows of unfinished groups that ended before; None where there are no unfinished groups."""

    @staticmethod
    def of(asked: Batch, carried: Batch | None, step: int, spec: RLJobSpec) -> PartialRound:
        """asked: rows that begin in this step. carried: of unfinished groups, all of lower numbers."""
        assert spec.rollout.partial is not None
        rows, ended, begun = asked, None, None
        drawn_steps, num_begun = np.full((2, len(asked)), [[step], [0]], np.int64)
        if carried is not None:
            is_unfinished = carried[UNFINISHED].values
            ended = carried.take(np.flatnonzero(~is_unfinished))
            going = carried.take(np.flatnonzero(is_unfinished))
            rows = Batch.concat([going.select(asked.columns), asked])
            begun = begun_responses(going, len(asked))
            drawn_steps = np.concatenate([going[DRAWN_STEP].values, drawn_steps])
            num_begun = np.concatenate([going["response_ids"].lengths, num_begun])
        limits = max_tokens_of(spec, rows.lengths("prompt_ids"))
        bounds = np.minimum(limits, num_begun + spec.rollout.partial.tokens_per_round)
        is_last = (bounds == limits) | (step - drawn_steps >= spec.rollout.partial.max_carries)
        return PartialRound(rows, begun, drawn_steps, limits, bounds, is_last, ended)

    def requests(self, sampling: Sampling) -> Requests:
        """What an engine is asked for."""
        heads, prompt_of = np.unique(self.rows.index.heads(), return_inverse=True)
        prompts = self.rows.columns["prompt_ids"]
        return Requests(
            row_ids=self.rows.row_ids,
            turns=np.zeros_like(self.rows.row_ids),
            prompts=Column.ragged([prompts.row(int(head)) for head in heads]),
            prompt_of=prompt_of.astype(np.int64),
            max_tokens=self.bounds,
            samplings=(sampling,),
            begun=self.begun,
            pictures=prompt_pictures(self.rows),
        )

    @property
    def num_begun(self) -> int:
        """Tokens that all rows together had before the round."""
        return 0 if self.begun is None else len(self.begun.response_ids.values)

    def has_ended(self, places: Int64, endings: np.ndarray) -> np.ndarray:
        """bool: whether rows at some places of `rows` do not go on, by how their requests ended."""
        ended: np.ndarray = (endings != Ending.LENGTH) | self.is_last[places]
        return ended

    def after(self, drawn: Batch, endings: np.ndarray) -> Batch:
        """All rows of the rank that are in unfinished groups or were. drawn: `rows` with their responses, among them
        `truncated`. endings: [rows]."""
        is_unfinished = ~self.has_ended(np.arange(len(drawn)), endings)
        of_round = {
            "truncated": Column.fixed(drawn["truncated"].values & ~is_unfinished),
            UNFINISHED: Column.fixed(is_unfinished),
            DRAWN_STEP: Column.fixed(self.drawn_steps),
        }
        drawn = drawn.with_columns(of_round)
        return drawn if self.ended is None else Batch.concat([drawn, self.ended])

    def num_cut_off(self, endings: np.ndarray) -> int:
        """Rows that end without being as long as they may be, as they would be carried too often."""
        return int(np.count_nonzero((endings == Ending.LENGTH) & self.is_last & (self.bounds < self.limits)))


def begun_responses(going: Batch, num_new: int) -> PartialResponses:
    """What rows that go on have already, and nothing for some that begin behind them."""

    def behind(column: Column) -> Column:
        return replace(column, offsets=offsets_of(np.concatenate([column.lengths, np.zeros(num_new, np.int64)])))

    return PartialResponses(
        response_ids=behind(going["response_ids"]),
        log_probs=behind(going["rollout_log_probs"]),
        token_versions=behind(going["token_versions"]),
        routes=behind(going["routed_experts"]) if "routed_experts" in going else None,
    )


def complete_groups(rows: Batch) -> tuple[Batch, Batch]:
    """Rows of groups all of whose rows have ended, and the others."""
    is_unfinished = rows[UNFINISHED].values
    goes_on = np.isin(rows.group_ids, rows.group_ids[is_unfinished])
    return rows.take(np.flatnonzero(~goes_on)), rows.take(np.flatnonzero(goes_on))


def like(rows: Batch, other: Batch) -> Batch:
    """Rows with the columns of others, those that they have not got yet as zeros: one per row each."""
    missing = [name for name in other.columns if name not in rows]
    assert not any(other[name].is_ragged for name in missing), f"{missing} are not of rows"
    zeros = {name: Column.fixed(np.zeros(len(rows), other[name].values.dtype)) for name in missing}
    return rows.with_columns(zeros).select(other.columns)
