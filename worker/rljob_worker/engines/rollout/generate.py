"""Calls that wait for all of their responses, over any engine: `generate`, and `answer` of requests of any kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rljob_worker.batch import Column, Indices
from rljob_worker.engines.rollout.protocol import RolloutEngine
from rljob_worker.engines.rollout.requests import EndedRequests, Ending, Requests, Sampling
from rljob_worker.errors import BadData


@dataclass(frozen=True, slots=True)
class Responses:
    """What was generated, in the order of the rows that were asked for; columns as in `Ended`."""

    response_ids: Column
    """Ragged int64 [rows]."""
    log_probs: Column
    """Ragged float32 [rows]."""
    token_versions: Column
    """Ragged int64 [rows]."""
    endings: np.ndarray
    """int8 [rows], of `Ending`."""
    prompt_routes: Column | None = None
    """Ragged [rows]: of a prompt, at its first row."""
    routes: Column | None = None
    """Ragged [rows]."""

    @property
    def truncated(self) -> np.ndarray:
        """bool [rows]: the response was as long as it might be, and had not ended."""
        truncated: np.ndarray = self.endings == Ending.LENGTH
        return truncated


def generate(
    engine: RolloutEngine,
    prompts: Sequence[Indices],
    sampling: Sampling,
    row_ids: Indices,
    group_size: int,
    max_tokens: int | Indices,
    when_ended: Callable[[EndedRequests], None] | None = None,
    pictures: Column | None = None,
) -> Responses:
    """`group_size` responses of at most `max_tokens` to each prompt (int64 token ids, at least one). `row_ids` is int64
    [len(prompts) * group_size]; row r answers prompt r // group_size. Nothing else may be running in the engine.

    max_tokens: of all prompts, or [prompts]. when_ended: called with rows that have ended, while others go on.
    pictures: of each prompt, as in `Requests`. Raises BadData as the engine does, in which no row is left then.
    """
    row_ids = np.asarray(row_ids, np.int64)
    assert len(row_ids) == len(prompts) * group_size, "one row_id per response"
    requests = Requests(
        row_ids=row_ids,
        turns=np.zeros_like(row_ids),
        prompts=Column.ragged(prompts),
        prompt_of=np.repeat(np.arange(len(prompts)), group_size),
        max_tokens=np.repeat(np.full(len(prompts), max_tokens, np.int64), group_size),
        samplings=(sampling,),
        pictures=pictures,
    )
    return answer(engine, requests, when_ended)


def answer(
    engine: RolloutEngine, requests: Requests, when_ended: Callable[[EndedRequests], None] | None = None
) -> Responses:
    """The responses to these requests, in their order; otherwise as `generate`."""
    engine.submit(requests)
    parts: list[EndedRequests] = []
    num_left = len(requests)
    try:
        while num_left or not parts:
            parts.append(engine.advance())
            num_left -= len(parts[-1])
            if when_ended is not None and len(parts[-1]):
                when_ended(parts[-1])
    except BadData:
        engine.abort(requests.row_ids)
        raise
    return in_order(parts, requests.row_ids)


def in_order(parts: Sequence[EndedRequests], row_ids: Indices) -> Responses:
    """The responses of these rows, each of which is in one of the parts, and no other rows are."""
    generated = np.concatenate([part.row_ids for part in parts])
    by_row = np.argsort(generated, kind="stable")
    order = by_row[np.searchsorted(generated[by_row], row_ids)] if len(generated) else by_row
    assert np.array_equal(generated[order], row_ids), "not the rows that were asked for"

    def routes(of_parts: Sequence[Column | None]) -> Column | None:
        recorded = [column for column in of_parts if column is not None]
        return Column.concat(recorded).take(order) if recorded else None

    return Responses(
        Column.concat([part.response_ids for part in parts]).take(order),
        Column.concat([part.log_probs for part in parts]).take(order),
        Column.concat([part.token_versions for part in parts]).take(order),
        np.concatenate([part.endings for part in parts])[order],
        routes([part.prompt_routes for part in parts]),
        routes([part.routes for part in parts]),
    )
