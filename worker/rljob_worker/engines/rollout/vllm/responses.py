"""Responses while they grow, and the table of those that have ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from rljob_worker.batch import Column
from rljob_worker.engines.rollout.requests import Ended, Ending


@dataclass(slots=True)
class Response:
    """What one request has got so far."""

    row_id: int
    turn: int
    stop_token_ids: frozenset[int]
    """Of the job, beside the model's end tokens."""
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    """The policy version each token was sampled from."""

    def add(self, tokens: Sequence[int], log_probs: Sequence[float], version: int) -> None:
        """The next tokens."""
        self.tokens.extend(tokens)
        self.log_probs.extend(log_probs)
        self.versions.extend([version] * len(tokens))

    def ending(self, end_token_ids: frozenset[int]) -> Ending:
        """Why a response that vLLM calls finished has ended. It may reach its length with the token that ends it."""
        if self.tokens and self.tokens[-1] in end_token_ids:
            return Ending.END_TOKEN
        if self.tokens and self.tokens[-1] in self.stop_token_ids:
            return Ending.STOP
        return Ending.LENGTH


def table_of(ended: Sequence[tuple[Response, Ending]]) -> Ended:
    """One entry per response that has ended."""
    responses = [response for response, _ in ended]
    return Ended(
        row_ids=np.array([response.row_id for response in responses], np.int64),
        turns=np.array([response.turn for response in responses], np.int64),
        response_ids=Column.ragged([response.tokens for response in responses]),
        log_probs=Column.ragged([response.log_probs for response in responses], "float32"),
        token_versions=Column.ragged([response.versions for response in responses]),
        endings=np.array([ending for _, ending in ended], np.int8),
    )
