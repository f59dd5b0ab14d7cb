"""Responses while they grow, and the table of those that have ended."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from math import isfinite

import numpy as np

from rljob_worker.batch import Column
from rljob_worker.engines.rollout.requests import Ended, Ending
from rljob_worker.engines.rollout.stop_strings import StopStrings


@dataclass(slots=True)
class Response:
    """What one request has got so far."""

    row_id: int
    turn: int
    handle: str
    """The library's name of the request."""
    stop_token_ids: frozenset[int]
    """Of the job, beside the model's end tokens."""
    stops: StopStrings | None = None
    """Texts that end it."""
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    """The policy version each token was sampled from."""
    is_stopped: bool = False
    """Whether its last token ends a stop text."""
    spoilt_by: int | None = None
    """The policy version whose logits after its last token were not finite: there is no more to come."""
    is_open: bool = True
    """Whether the library still has the request."""

    def add(self, tokens: Sequence[int], log_probs: Sequence[float], version: int) -> None:
        """The next tokens, up to where a stop text ends among them, or to a log-prob that is not finite."""
        if self.spoilt_by is not None:
            return
        if self.stops is not None and (end := self._stopped_after(tokens)) is not None:
            tokens, log_probs = tokens[:end], log_probs[:end]
            self.is_stopped = True
        if not all(map(isfinite, log_probs)):
            end = next(at for at, log_prob in enumerate(log_probs) if not isfinite(log_prob))
            tokens, log_probs = tokens[:end], log_probs[:end]
            self.is_stopped, self.spoilt_by = False, version
        self.tokens.extend(tokens)
        self.log_probs.extend(log_probs)
        self.versions.extend([version] * len(tokens))

    def ending(self, end_token_ids: Container[int], *, is_finished: bool) -> Ending | None:
        """Why it has ended: None while it goes on, and where it is spoilt. is_finished: vLLM says so, for a token that
        ends it or its length, which it may reach with such a token."""
        if self.spoilt_by is not None:
            return None
        last = self.tokens[-1] if self.tokens else None
        if is_finished and not self.is_stopped and last in end_token_ids:
            return Ending.END_TOKEN
        if self.is_stopped or (is_finished and last in self.stop_token_ids):
            return Ending.STOP
        return Ending.LENGTH if is_finished else None

    def _stopped_after(self, tokens: Sequence[int]) -> int | None:
        """How many of the next tokens there are up to the one in which a stop text ends."""
        assert self.stops is not None
        for at in np.flatnonzero(self.stops.may_end(np.array(tokens, np.int64))).tolist():
            if self.stops.have_ended(np.array([*self.tokens, *tokens[: at + 1]], np.int64)):
                return at + 1
        return None


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
