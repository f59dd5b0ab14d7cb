"""An engine that answers what a test says, all at once, as far as a request has room for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from rljob_worker.batch import Column, Indices
from rljob_worker.engines.rollout.generate import Responses, in_order
from rljob_worker.engines.rollout.requests import EndedRequests, Ending, Requests, Sampling

Answer = Callable[[int, Sampling], list[int]]
"""The response to a row_id."""


class ScriptedEngine:
    """A RolloutEngine. Log-probs are minus the tokens."""

    version = 0

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.submitted: list[Requests] = []
        self._waiting: list[Requests] = []

    def submit(self, requests: Requests) -> None:
        self.submitted.append(requests)
        self._waiting.append(requests)

    def advance(self, most_steps: int | None = None) -> EndedRequests:
        waiting, self._waiting = self._waiting, []
        tokens, versions, endings = list[list[int]](), list[list[int]](), list[Ending]()
        for item in waiting:
            for at, (row_id, room) in enumerate(zip(item.row_ids.tolist(), item.max_tokens.tolist(), strict=True)):
                whole = self.answer(row_id, item.samplings[0])
                begun = [] if item.begun is None else item.begun.token_versions.row(at).tolist()
                assert item.begun is None or item.begun.response_ids.row(at).tolist() == whole[: len(begun)]
                tokens.append(whole[:room])
                versions.append(begun + [self.version] * (len(tokens[-1]) - len(begun)))
                endings.append(Ending.LENGTH if len(whole) > room else Ending.END_TOKEN)
        result = ended(
            np.concatenate([np.empty(0, np.int64), *(item.row_ids for item in waiting)]),
            np.concatenate([np.empty(0, np.int64), *(item.turns for item in waiting)]),
            tokens,
        )
        return replace(result, token_versions=Column.ragged(versions), endings=np.array(endings, np.int8))

    def abort(self, row_ids: Indices) -> EndedRequests:
        raise NotImplementedError

    def load_weights(self, weights: Iterable[tuple[str, Any]], version: int, *, lasting: bool = False) -> None:
        self.version = version

    def held_bytes(self, depth: str) -> int:
        return 0

    def sleep(self, depth: str) -> None:
        """There is nothing to free."""

    def close(self) -> None:
        """Nothing was started."""


def ended(row_ids: Indices, turns: Indices, tokens: list[list[int]]) -> EndedRequests:
    """Responses that ended by their last token, drawn from version 0."""
    response_ids = Column.ragged(tokens)
    return EndedRequests(
        row_ids,
        turns,
        response_ids,
        Column.from_lengths(-response_ids.values.astype(np.float32), response_ids.lengths),
        Column.from_lengths(np.zeros_like(response_ids.values), response_ids.lengths),
        np.full(len(row_ids), Ending.END_TOKEN, np.int8),
    )


def responses_of(*tokens: list[int]) -> Responses:
    """To some rows, in order."""
    rows = np.arange(len(tokens))
    return in_order([ended(rows, np.zeros_like(rows), list(tokens))], rows)
