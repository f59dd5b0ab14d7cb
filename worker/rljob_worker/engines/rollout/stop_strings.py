"""Texts that end a response: recognized in its tokens, whatever its token borders.

    stops = StopStrings(("</answer>",), Vocabulary.of(tokenizer))
    for row in np.flatnonzero(stops.may_end(tokens)):      # the token that each row just got: few rows are left
        ended = stops.have_ended(tokens_of(row))

A response's text is the bytes of its tokens one after another, so that characters may be spread over several of them.
Only a token that has the end of a stop text in it can complete one, and only as many bytes before it are looked at as a
stop text has: no cost grows with the response.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial

import numpy as np
from transformers import AutoTokenizer, PretrainedConfig

from rljob_worker.batch import Indices
from rljob_worker.batch.row_index import row_number
from rljob_worker.engines.rollout.requests import Requests
from rljob_worker.engines.rollout.vocabulary import Vocabulary
from rljob_worker.errors import InvalidJob

_KEPT = 4
"""Sets of stop texts that an engine keeps, besides those of requests that run: training and validation have one."""


class StopStrings:
    """Some stop texts over the tokens of one tokenizer. Raises InvalidJob for a text that no response can contain."""

    def __init__(self, texts: Sequence[str], vocabulary: Vocabulary) -> None:
        self._tokens = vocabulary.token_bytes
        for text in texts:
            _require_possible(text, vocabulary)
        self._stops = tuple(text.encode() for text in texts)
        self._longest = max(map(len, self._stops))
        ends = tuple({stop[at:] for stop in self._stops for at in range(1, len(stop))})
        may_end = [piece.startswith(ends) or any(stop in piece for stop in self._stops) for piece in self._tokens]
        # ids that the model has and the tokenizer has not are not text
        self._may_end = np.array([*may_end, False])

    def may_end(self, tokens: Indices) -> np.ndarray:
        """bool [rows]: whether a stop text can end in each of these tokens."""
        return self._may_end[np.minimum(tokens, len(self._tokens))]

    def have_ended(self, tokens: Indices) -> bool:
        """Whether a stop text ends in the last of a response's tokens."""
        last = self._bytes(int(tokens[-1]))
        tail, wanted = last, self._longest - 1 + len(last)
        at = len(tokens) - 1
        while at > 0 and len(tail) < wanted:
            at -= 1
            tail = self._bytes(int(tokens[at])) + tail
        return any(tail.find(stop, max(0, len(tail) - len(last) - len(stop) + 1)) >= 0 for stop in self._stops)

    def _bytes(self, token: int) -> bytes:
        return self._tokens[token] if token < len(self._tokens) else b""


class StopTexts:
    """The stop texts that one engine was asked for last, each set made ready once."""

    def __init__(self, vocabulary: Vocabulary | None) -> None:
        self._of = None if vocabulary is None else lru_cache(_KEPT)(partial(StopStrings, vocabulary=vocabulary))

    def of(self, texts: tuple[str, ...]) -> StopStrings | None:
        """None for none. Raises InvalidJob for a text that no response can contain, and for any where the engine has
        no vocabulary."""
        if not texts:
            return None
        if self._of is None:
            raise InvalidJob("stop texts are matched by tokens, and this engine has no tokenizer; write stop_token_ids")
        return self._of(texts)

    def of_requests(self, requests: Requests) -> list[StopStrings | None]:
        """The stop texts of each of their samplings. Raises InvalidJob with the first row that is drawn so."""
        result = list[StopStrings | None]()
        for number, sampling in enumerate(requests.samplings):
            try:
                result.append(self.of(sampling.stop))
            except InvalidJob as error:
                at = 0 if requests.sampling_of is None else int((requests.sampling_of == number).argmax())
                raise InvalidJob(f"row {row_number(requests.row_ids[at])}: {error}") from error
        return result


def vocabulary_of(
    path: str, config: PretrainedConfig, stop: Sequence[str], stop_token_ids: Sequence[int]
) -> Vocabulary | None:
    """The tokens of a model's tokenizer, where a job has stop texts. Raises InvalidJob for stops that no response can
    contain."""
    size = config.get_text_config().vocab_size
    for token in stop_token_ids:
        if token >= size:
            raise InvalidJob(f"rollout.stopTokenIds {token}: the model at {path!r} has tokens from 0 to {size - 1}")
    if not stop:
        return None
    vocabulary = Vocabulary.of(AutoTokenizer.from_pretrained(path))
    for text in stop:
        _require_possible(text, vocabulary)
    return vocabulary


def _require_possible(text: str, vocabulary: Vocabulary) -> None:
    if not text:
        raise InvalidJob("rollout.stop: an empty text would end every response at once; leave it out")
    if text in vocabulary.special:
        raise InvalidJob(
            f"rollout.stop {text!r}: this is a special token, which is not text in a response; write "
            f"stopTokenIds: [{vocabulary.special[text]}]"
        )
    if not _can_match(text.encode(), vocabulary.token_bytes):
        raise InvalidJob(
            f"rollout.stop {text!r}: no tokens of the model's tokenizer make this text, so it would never end a "
            "response; write another text, or rollout.stopTokenIds"
        )


def _can_match(stop: bytes, tokens: Sequence[bytes]) -> bool:
    """Whether some tokens one after another contain the text: it may begin inside the first and end inside the last."""
    if any(stop in piece for piece in tokens):
        return True
    pieces = set(tokens)
    begins = {at for at in range(1, len(stop)) if any(piece.endswith(stop[:at]) for piece in pieces)}
    reached = set[int]()
    for at in range(len(stop)):
        if at in begins or any(before in reached and stop[before:at] in pieces for before in range(at)):
            reached.add(at)
    return any(piece.startswith(stop[at:]) for at in reached for piece in pieces)
