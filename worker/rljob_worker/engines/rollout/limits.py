"""Can an engine compute what is asked of it? Looked at for all requests of a call before any of them is queued. Pure.

require_possible(requests, limits, running)     # raises, or every one of the requests can run
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TypeGuard

import numpy as np

from rljob_api.catalogue.rollout_engines import Temperatures
from rljob_worker.batch import Column
from rljob_worker.engines.rollout.requests import Requests, Sampling
from rljob_worker.errors import BadData, InvalidJob
from rljob_worker.row_index import row_number

_MOST_TURNS = _MOST_TOKENS = 1 << 31
"""A draw is numbered by turn and position in 64 bits."""
_MOST_STOPS, _LONGEST_STOP, _MOST_STOP_TOKENS = 16, 256, 64
"""As in rollout.stop and rollout.stopTokenIds."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one engine has room for, whatever is free at the time."""

    vocabulary_size: int
    """Tokens of the model: ids from 0 to one less."""
    longest_row: int | None
    """Tokens of a prompt and its response together; None where the model has no end of positions."""
    temperatures: Temperatures


def require_possible(requests: Requests, limits: Limits, running: Collection[int]) -> None:
    """running: row ids whose requests have not been given back.

    Raises BadData for what no engine could answer, and InvalidJob for what fields of the job ask of this one; both name
    the first row of those that are refused, and the reason. Stop texts are told by a tokenizer: see `StopTexts`.
    """
    _require_table(requests)
    if not len(requests):
        return
    _require_rows(requests, running)
    _require_prompts(requests, limits.vocabulary_size)
    _require_lengths(requests, limits.longest_row)
    if (reason := sampling_fault(requests.sampling, limits)) is not None:
        raise InvalidJob(f"row {row_number(requests.row_ids[0])}: {reason}")


def sampling_fault(sampling: Sampling, limits: Limits) -> str | None:
    """Why an engine cannot draw tokens so."""
    return (
        _temperature_fault(sampling.temperature, limits.temperatures)
        or _cut_fault(sampling)
        or _stop_fault(sampling, limits.vocabulary_size)
    )


def _require_table(requests: Requests) -> None:
    names = ("row_ids", "turns", "prompt_of", "max_tokens")
    columns = [getattr(requests, name) for name in names]
    for name, column in zip(names, columns, strict=True):
        if not _is_whole_numbers(column):
            raise BadData(f"requests: {name} is no int64 [requests]")
    if len({len(column) for column in columns}) > 1:
        lengths = ", ".join(f"{len(column)} {name}" for name, column in zip(names, columns, strict=True))
        raise BadData(f"requests: {lengths}; each request has one of each")
    if not _is_ragged(requests.prompts):
        raise BadData("requests: prompts is no ragged int64 column of token ids")
    if not isinstance(requests.sampling, Sampling):
        raise BadData("requests: sampling does not say how to draw tokens")


def _is_whole_numbers(array: object) -> bool:
    return isinstance(array, np.ndarray) and array.dtype == np.int64 and array.ndim == 1


def _is_ragged(column: object) -> bool:
    if not isinstance(column, Column) or not _is_whole_numbers(column.values):
        return False
    offsets = column.offsets
    if offsets is None or not _is_whole_numbers(offsets) or not len(offsets):
        return False
    is_ascending = bool((offsets[1:] >= offsets[:-1]).all())
    return is_ascending and offsets[0] == 0 and offsets[-1] == len(column.values)


def _require_rows(requests: Requests, running: Collection[int]) -> None:
    row_ids, turns = requests.row_ids, requests.turns
    _refuse(requests, row_ids < 0, "row ids count from 0")
    _refuse(requests, (turns < 0) | (turns >= _MOST_TURNS), f"its turn is not between 0 and {_MOST_TURNS - 1}")
    _, first = np.unique(row_ids, return_index=True)
    comes_again = ~np.isin(np.arange(len(row_ids)), first)
    _refuse(requests, comes_again, "it comes twice, and a row has one request at a time")
    runs = np.isin(row_ids, np.fromiter(running, np.int64, len(running)))
    _refuse(requests, runs, "it runs already, and a row has one request at a time")


def _require_prompts(requests: Requests, vocabulary_size: int) -> None:
    prompt_of, prompts = requests.prompt_of, requests.prompts
    there = (prompt_of >= 0) & (prompt_of < prompts.num_rows)
    _refuse(requests, ~there, f"its prompt is not one of the {prompts.num_rows} that came")
    comes_before = np.zeros(len(prompt_of), bool)
    comes_before[1:] = prompt_of[1:] < prompt_of[:-1]
    _refuse(requests, comes_before, "its prompt comes before that of the row before it; requests are in their order")
    _refuse(requests, prompts.lengths[prompt_of] == 0, "its prompt is empty; a prompt has at least one token")
    _require_known_tokens(requests, vocabulary_size)


def _require_known_tokens(requests: Requests, vocabulary_size: int) -> None:
    values, offsets = requests.prompts.values, requests.prompts.offsets
    unknown = np.flatnonzero((values < 0) | (values >= vocabulary_size))
    if not len(unknown):
        return
    assert offsets is not None
    prompt_of_unknown = np.searchsorted(offsets, unknown, side="right") - 1
    refused = np.isin(requests.prompt_of, prompt_of_unknown)
    if refused.any():
        prompt = requests.prompt_of[refused.argmax()]
        at = unknown[np.searchsorted(prompt_of_unknown, prompt)]
        reason = (
            f"token {values[at]} at place {at - offsets[prompt]} of its prompt: the model has tokens from 0 to "
            f"{vocabulary_size - 1}; name a model whose tokenizer and weights belong together"
        )
        _refuse(requests, refused, reason)


def _require_lengths(requests: Requests, longest_row: int | None) -> None:
    _refuse(requests, requests.max_tokens < 1, "its response may have no token; data.maxPromptTokens leaves none")
    lengths = requests.prompts.lengths[requests.prompt_of]
    longest = _MOST_TOKENS if longest_row is None else longest_row
    too_long = requests.max_tokens > longest - lengths
    if too_long.any():
        at = int(too_long.argmax())
        raise InvalidJob(
            f"row {row_number(requests.row_ids[at])}: a prompt of {lengths[at]} tokens and a response of up to "
            f"{requests.max_tokens[at]} are more than the {longest} that a row may have, by the model's positions "
            "(max_position_embeddings) and as the engine was started; lower rollout.maxResponseTokens or "
            "data.maxPromptTokens"
        )


def _refuse(requests: Requests, refused: np.ndarray, reason: str) -> None:
    """refused: bool [requests]."""
    if refused.any():
        raise BadData(f"row {row_number(requests.row_ids[refused.argmax()])}: {reason}")


def _temperature_fault(temperature: object, known: Temperatures) -> str | None:
    if _is_number(temperature) and known.have(temperature):
        return None
    return (
        f"temperature {temperature!r}: the engine samples at 0 and from {known.lowest:g} to {known.highest:g}; below, "
        f"{known.below}"
    )


def _cut_fault(sampling: Sampling) -> str | None:
    """Of what leaves a part of the distribution, and of the seed."""
    if not (_is_number(sampling.top_p) and 0 < sampling.top_p <= 1):
        return f"top_p {sampling.top_p!r}: it is above 0 and at most 1"
    if not (_is_whole(sampling.top_k) and sampling.top_k >= 0):
        return f"top_k {sampling.top_k!r}: it is a whole number from 0 on"
    if not (_is_number(sampling.min_p) and 0 <= sampling.min_p <= 1):
        return f"min_p {sampling.min_p!r}: it is between 0 and 1"
    return None if _is_whole(sampling.seed) else f"seed {sampling.seed!r}: it is a whole number"


def _stop_fault(sampling: Sampling, vocabulary_size: int) -> str | None:
    stop, tokens = sampling.stop, sampling.stop_token_ids
    if not isinstance(stop, tuple) or len(stop) > _MOST_STOPS or not all(map(_is_text, stop)):
        return f"stop: a tuple of at most {_MOST_STOPS} texts, each of 1 to {_LONGEST_STOP} characters that UTF-8 has"
    if not isinstance(tokens, tuple) or len(tokens) > _MOST_STOP_TOKENS:
        return f"stop_token_ids: a tuple of at most {_MOST_STOP_TOKENS} tokens"
    for token in tokens:
        if not (_is_whole(token) and 0 <= token < vocabulary_size):
            return f"stop_token_ids {token!r}: the model has tokens from 0 to {vocabulary_size - 1}"
    return None


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_text(value: object) -> bool:
    """A lone half of a surrogate pair is no text."""
    if not isinstance(value, str) or not 0 < len(value) <= _LONGEST_STOP:
        return False
    return not any("\ud800" <= character <= "\udfff" for character in value)
