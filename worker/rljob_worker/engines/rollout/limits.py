"""Can an engine compute what is asked of it? Looked at for all requests of a call before any of them is queued. Pure.

require_possible(requests, limits, running)     # raises, or every one of the requests can run
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass
from typing import TypeGuard

import numpy as np

from rljob_api.catalogue.rollout_engines import Temperatures
from rljob_worker.batch import Column, Indices
from rljob_worker.batch.row_index import row_number
from rljob_worker.engines.rollout.requests import MOST_TOP_LOG_PROBS, PartialResponses, Requests, Sampling
from rljob_worker.errors import BadData, InvalidJob

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
    records_routes: bool = False
    """Whether tokens that a request brings need their routes."""
    sees: bool = False
    """Whether prompts may have pictures."""
    num_state_values: int = 0
    """Numbers of the state that the model reads beside each prompt."""
    num_decision_tokens: int | None = None
    """Tokens of every response, where the model computes all of them at once."""
    gives_top_log_probs: bool = False
    """Whether likely tokens may be asked for beside those that are drawn."""


def require_possible(requests: Requests, limits: Limits, running: Collection[int]) -> None:
    """running: row ids whose requests have not been given back.

    Raises BadData for what no engine could answer, and InvalidJob for what fields of the job ask of this one; both name
    the first row of those that are refused, and the reason. Stop texts are matched by a tokenizer: see `StopTexts`.
    """
    _require_table(requests)
    if not len(requests):
        return
    _require_rows(requests, running)
    _require_prompts(requests, limits.vocabulary_size)
    _require_lengths(requests, limits.longest_row, limits.num_decision_tokens)
    if requests.pictures is not None:
        _require_pictures(requests, requests.pictures, limits)
    _require_states(requests, limits)
    _require_samplings(requests, limits)
    _require_draws(requests)
    if requests.begun is not None:
        _require_begun(requests, requests.begun, limits)


def require_rows(row_ids: Indices, known: Container[int], reason: str) -> None:
    """Raises BadData for the first row that is not one of the known, with the reason."""
    for row_id in row_ids.tolist():
        if row_id not in known:
            raise BadData(f"row {row_number(row_id)}: {reason}")


def require_holdable(row_ids: Indices, ended: Mapping[int, int], most_tokens: int) -> None:
    """ended: tokens of each row that ended with the last call, by row id; most_tokens: that rows may hold.

    Raises BadData for a row that did not end then, and InvalidJob, with the numbers, for rows that together are longer.
    """
    require_rows(row_ids, ended, "it is not one of those that ended with the last call, and only their keys are there")
    held = set(row_ids.tolist())
    num_tokens = sum(ended[row] for row in held)
    if num_tokens > most_tokens:
        raise InvalidJob(
            f"row {row_number(row_ids[0])} and {len(held) - 1} more have {num_tokens} tokens, and the engine has room "
            f"to hold {most_tokens} between turns; hold fewer rows, or raise rollout.memoryFraction"
        )


NO_REQUEST = "it has no request in this engine: it was never submitted, or has ended"
"""A reason for `require_rows`."""


def sampling_fault(sampling: Sampling, limits: Limits) -> str | None:
    """Why an engine cannot draw tokens so."""
    return (
        _temperature_fault(sampling.temperature, limits.temperatures)
        or _cut_fault(sampling)
        or _stop_fault(sampling, limits.vocabulary_size)
        or _top_fault(sampling.top_log_probs, limits)
    )


def _require_table(requests: Requests) -> None:
    names = ("row_ids", "turns", "prompt_of", "max_tokens")
    columns = [getattr(requests, name) for name in names]
    for name, column in zip(names, columns, strict=True):
        if not _is_whole_numbers(column):
            raise BadData(f"requests: {name} is not an int64 [requests]")
    if len({len(column) for column in columns}) > 1:
        lengths = ", ".join(f"{len(column)} {name}" for name, column in zip(names, columns, strict=True))
        raise BadData(f"requests: {lengths}; each request has one of each")
    if not _is_ragged(requests.prompts):
        raise BadData("requests: prompts is not a ragged int64 column of token ids")
    samplings = requests.samplings
    if (
        not isinstance(samplings, tuple)
        or not samplings
        or not all(isinstance(sampling, Sampling) for sampling in samplings)
    ):
        raise BadData("requests: samplings is not a tuple that says how to draw tokens")
    for name in ("sampling_of", "next_draws"):
        column = getattr(requests, name)
        if column is not None and not (_is_whole_numbers(column) and len(column) == len(requests)):
            raise BadData(f"requests: {name} is not an int64 [{len(requests)} requests]")


def _is_whole_numbers(array: object) -> bool:
    return isinstance(array, np.ndarray) and array.dtype == np.int64 and array.ndim == 1


def _is_ragged(column: object, dtype: type = np.int64) -> bool:
    if not isinstance(column, Column):
        return False
    values, offsets = column.values, column.offsets
    if not (isinstance(values, np.ndarray) and values.dtype == dtype and values.ndim == 1):
        return False
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


def _require_pictures(requests: Requests, pictures: Column, limits: Limits) -> None:
    if not isinstance(pictures, Column) or pictures.dtype != "binary" or pictures.num_rows != requests.prompts.num_rows:
        raise BadData(f"requests: pictures is not binary [{requests.prompts.num_rows} prompts]")
    if limits.sees:
        return
    shows = (pictures.lengths > 0)[requests.prompt_of]
    if shows.any():
        raise InvalidJob(
            f"row {row_number(requests.row_ids[shows.argmax()])}: its prompt has pictures, and the model of the engine "
            "does not see; use a model that sees, or leave data.imagesColumn out"
        )


def _require_states(requests: Requests, limits: Limits) -> None:
    states, wanted = requests.states, limits.num_state_values
    if states is not None and (not _is_ragged(states, np.float32) or states.num_rows != requests.prompts.num_rows):
        raise BadData(f"requests: states is not ragged float32 [{requests.prompts.num_rows} prompts]")
    if not wanted:
        return
    lengths = np.zeros(requests.prompts.num_rows, np.int64) if states is None else states.lengths
    wrong = (lengths != wanted)[requests.prompt_of]
    if wrong.any():
        there = int(lengths[requests.prompt_of[wrong.argmax()]])
        reason = (
            f"its state has {there} numbers, and the model reads {wanted} (state_size in its config.json); name a "
            "simulator that measures as many, or another model"
        )
        _refuse(requests, wrong, reason)
    assert states is not None
    spoilt = _any_of(~np.isfinite(states.values), lengths)[requests.prompt_of]
    _refuse(requests, spoilt, "its state has a number that is not finite")


def _require_lengths(requests: Requests, longest_row: int | None, num_decision_tokens: int | None = None) -> None:
    _refuse(requests, requests.max_tokens < 1, "its response may have no token; data.maxPromptTokens leaves none")
    short = requests.max_tokens < (num_decision_tokens or 0)
    if short.any():
        at = int(short.argmax())
        raise InvalidJob(
            f"row {row_number(requests.row_ids[at])}: its response may have {requests.max_tokens[at]} tokens, and a "
            f"decision of the model has {num_decision_tokens}; raise rollout.maxResponseTokens"
        )
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


def _require_samplings(requests: Requests, limits: Limits) -> None:
    sampling_of = requests.sampling_of
    if sampling_of is None:
        sampling_of = np.zeros(len(requests), np.int64)
    there = (sampling_of >= 0) & (sampling_of < len(requests.samplings))
    _refuse(requests, ~there, f"its sampling is not one of the {len(requests.samplings)} that came")
    for number in np.unique(sampling_of).tolist():
        if (reason := sampling_fault(requests.samplings[number], limits)) is not None:
            row = requests.row_ids[(sampling_of == number).argmax()]
            raise InvalidJob(f"row {row_number(row)}: {reason}")


def _require_draws(requests: Requests) -> None:
    draws = requests.next_draws
    if draws is not None:
        _refuse(
            requests, (draws < 0) | (draws >= _MOST_TOKENS), f"its next draw is not between 0 and {_MOST_TOKENS - 1}"
        )


def _require_begun(requests: Requests, begun: PartialResponses, limits: Limits) -> None:
    """Tokens that requests bring."""
    if not isinstance(begun, PartialResponses):
        raise BadData("requests: begun is not what there is of responses")
    columns = (begun.response_ids, begun.log_probs, begun.token_versions)
    kinds = (np.int64, np.float32, np.int64)
    if not all(_is_ragged(column, kind) for column, kind in zip(columns, kinds, strict=True)):
        raise BadData("requests: begun is not ragged int64 tokens, float32 log-probs and int64 versions")
    if any(column.num_rows != len(requests) for column in columns):
        raise BadData(f"requests: begun is not of {len(requests)} requests")
    tokens, log_probs, versions = columns
    lengths = tokens.lengths
    uneven = (log_probs.lengths != lengths) | (versions.lengths != lengths)
    _refuse(requests, uneven, "it brings more or fewer log-probs or versions than tokens")
    _refuse(requests, lengths >= requests.max_tokens, "it brings as many tokens as its response may have")
    unknown = (tokens.values < 0) | (tokens.values >= limits.vocabulary_size)
    _refuse(
        requests, _any_of(unknown, lengths), f"it brings a token that is not from 0 to {limits.vocabulary_size - 1}"
    )
    spoilt = ~np.isfinite(log_probs.values)
    _refuse(requests, _any_of(spoilt, lengths), "it brings a log-prob that is not finite")
    if limits.records_routes:
        routes = np.zeros_like(lengths) if begun.routes is None else begun.routes.lengths
        is_short = routes != lengths if len(routes) == len(lengths) else lengths > 0
        _refuse(requests, is_short, "it brings tokens without their routes, which this engine records")


def _any_of(values: np.ndarray, lengths: Indices) -> np.ndarray:
    """bool [rows]: whether one of the values of a row is set; of rows of these lengths, one after another."""
    return np.bincount(np.repeat(np.arange(len(lengths)), lengths), weights=values, minlength=len(lengths)) > 0


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
    """What is wrong with the cuts of the distribution, or with the seed."""
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


def _top_fault(number: object, limits: Limits) -> str | None:
    if not (_is_whole(number) and 0 <= number <= MOST_TOP_LOG_PROBS):
        return f"top_log_probs {number!r}: it is a whole number from 0 to {MOST_TOP_LOG_PROBS}"
    if number and not limits.gives_top_log_probs:
        return f"top_log_probs {number!r}: the engine gives the log-prob of the drawn token alone"
    return None


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_text(value: object) -> bool:
    """A lone half of a surrogate pair is not text."""
    if not isinstance(value, str) or not 0 < len(value) <= _LONGEST_STOP:
        return False
    return not any("\ud800" <= character <= "\udfff" for character in value)
