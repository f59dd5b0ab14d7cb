"""Requests that no engine may take, made of good ones: each kind with what the refusal says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rljob_worker.batch import Column
from rljob_worker.engines.rollout.requests import PartialResponses, Requests

Draw = np.random.Generator


@dataclass(frozen=True)
class Malformation:
    """One thing that is wrong. spoil: good requests in, the same with that out; words: a pattern of the refusal."""

    spoil: Callable[[Requests, Draw], Requests]
    words: str


def spoilt(requests: Requests, draw: Draw) -> Requests:
    """Good requests with one of the malformations."""
    kinds = list(MALFORMATIONS.values())
    return kinds[draw.integers(len(kinds))].spoil(requests, draw)


def _one_of(draw: Draw, values: Sequence[Any]) -> Any:
    return values[draw.integers(len(values))]


def _entry(column: str, *values: int) -> Callable[[Requests, Draw], Requests]:
    """One of these in place of an entry."""

    def spoil(requests: Requests, draw: Draw) -> Requests:
        changed = getattr(requests, column).copy()
        changed[draw.integers(len(changed))] = _one_of(draw, values)
        return replace(requests, **{column: changed})

    return spoil


def _column(column: str, *changes: Callable[[Any], Any]) -> Callable[[Requests, Draw], Requests]:
    def spoil(requests: Requests, draw: Draw) -> Requests:
        return replace(requests, **{column: _one_of(draw, changes)(getattr(requests, column))})

    return spoil


def _sampling(field: str, *values: Any) -> Callable[[Requests, Draw], Requests]:
    def spoil(requests: Requests, draw: Draw) -> Requests:
        return replace(requests, samplings=(replace(requests.samplings[0], **{field: _one_of(draw, values)}),))

    return spoil


def _prompt(change: Callable[[np.ndarray, Draw], np.ndarray]) -> Callable[[Requests, Draw], Requests]:
    """That of one of the requests."""

    def spoil(requests: Requests, draw: Draw) -> Requests:
        prompts = requests.prompts.to_list()
        at = int(_one_of(draw, requests.prompt_of))
        prompts[at] = change(prompts[at], draw)
        return replace(requests, prompts=Column.ragged(prompts))

    return spoil


def _with_unknown_token(prompt: np.ndarray, draw: Draw) -> np.ndarray:
    changed = prompt.copy()
    changed[draw.integers(len(changed))] = _one_of(draw, (-1, 96, 2**31, 2**40, -(2**63)))
    return changed


def _twice(requests: Requests, draw: Draw) -> Requests:
    at = np.repeat(np.arange(len(requests)), 2)
    columns = {name: getattr(requests, name)[at] for name in ("row_ids", "turns", "prompt_of", "max_tokens")}
    return replace(requests, **columns)


def _backwards(requests: Requests, draw: Draw) -> Requests:
    prompts = Column.ragged([*requests.prompts.to_list(), [5]])
    requests = replace(requests, prompts=prompts)
    twice = _twice(requests, draw)
    prompt_of = twice.prompt_of.copy()
    prompt_of[0] = prompts.num_rows - 1
    return replace(twice, row_ids=twice.row_ids[0] + np.arange(len(twice)), prompt_of=prompt_of)


def _added(field: Callable[[Requests, Draw], dict[str, Any]]) -> Callable[[Requests, Draw], Requests]:
    return lambda requests, draw: replace(requests, **field(requests, draw))


def _ways(requests: Requests, draw: Draw) -> dict[str, Any]:
    ways = np.zeros(len(requests), np.int64)
    ways[draw.integers(len(ways))] = _one_of(draw, (-1, 1, 2**62))
    return {"sampling_of": ways}


def _draws(requests: Requests, draw: Draw) -> dict[str, Any]:
    draws = np.zeros(len(requests), np.int64)
    draws[draw.integers(len(draws))] = _one_of(draw, (-1, 2**31, 2**62))
    return {"next_draws": draws}


def _of_another_type(requests: Requests, draw: Draw) -> dict[str, Any]:
    none = Column.ragged([[]] * len(requests))
    return {"begun": _one_of(draw, ([[5]], PartialResponses(none, none, none)))}


def _brings(
    tokens: tuple[int, ...] = (5,),
    log_probs: tuple[float, ...] = (-1.0,),
    versions: tuple[int, ...] = (0,),
    extra: int = 0,
) -> Callable[[Requests, Draw], Requests]:
    """One of the requests has tokens; as many more than there are requests as `extra`."""

    def spoil(requests: Requests, draw: Draw) -> Requests:
        at, number = _one_of(draw, np.flatnonzero(requests.max_tokens > 1)), len(requests) + extra
        rows = [[list(item) if row == at else [] for row in range(number)] for item in (tokens, log_probs, versions)]
        begun = PartialResponses(Column.ragged(rows[0]), Column.ragged(rows[1], "float32"), Column.ragged(rows[2]))
        return replace(requests, begun=begun)

    return spoil


def _moved_offset(prompts: Column) -> Column:
    assert prompts.offsets is not None
    return replace(prompts, offsets=prompts.offsets + 1)


MALFORMATIONS = {
    "empty prompt": Malformation(_prompt(lambda prompt, draw: prompt[:0]), "its prompt is empty"),
    "unknown token": Malformation(_prompt(_with_unknown_token), r"token -?\d+ at place \d+ of its prompt: .* 0 to 95"),
    "long prompt": Malformation(
        _prompt(lambda prompt, draw: np.full(draw.integers(256, 2000), 3)), "are more than the 256 that a row may have"
    ),
    "long response": Malformation(_entry("max_tokens", 256, 2**40, 2**63 - 1), "are more than the 256"),
    "no response": Malformation(_entry("max_tokens", 0, -1, -(2**63)), "its response may have no token"),
    "negative row": Malformation(_entry("row_ids", -1, -(2**63)), "row ids count from 0"),
    "row twice": Malformation(_twice, "it comes twice"),
    "turn": Malformation(_entry("turns", -1, 2**31, 2**63 - 1), "its turn is not between"),
    "prompt that did not come": Malformation(_entry("prompt_of", -1, 99, 2**62), "its prompt is not one of the"),
    "prompts in disorder": Malformation(_backwards, "comes before that of the row before it"),
    "row ids of another type": Malformation(
        _column("row_ids", lambda ids: ids + 0.5, list, lambda ids: ids[:, None], lambda ids: None), "row_ids is no"
    ),
    "too few turns": Malformation(_column("turns", lambda turns: turns[1:]), "each request has one of each"),
    "no sampling": Malformation(
        _column("samplings", lambda result: None, lambda result: (), list, lambda result: ({"temperature": 1.0},)),
        "samplings is not a tuple that says how",
    ),
    "prompts of another type": Malformation(
        _column(
            "prompts",
            lambda prompts: None,
            lambda prompts: prompts.to_list(),
            lambda prompts: Column.fixed(prompts.values),
            lambda prompts: replace(prompts, values=prompts.values.astype(np.float64)),
            _moved_offset,
        ),
        "prompts is not a ragged int64",
    ),
    "temperature": Malformation(
        _sampling("temperature", float("nan"), float("inf"), -1.0, 1e-9, 1e-300, 1e9, 10**400, True, None, "1"),
        "the engine samples at 0 and from",
    ),
    "top_p": Malformation(_sampling("top_p", 0.0, -0.1, 1.5, float("nan"), None), "above 0 and at most 1"),
    "top_k": Malformation(_sampling("top_k", -1, 1.5, None, True), "a whole number from 0 on"),
    "min_p": Malformation(_sampling("min_p", -0.1, 1.5, float("nan"), "0"), "between 0 and 1"),
    "likely tokens": Malformation(_sampling("top_log_probs", -1, 21, 1.5, None, True), "a whole number from 0 to 20"),
    "seed": Malformation(_sampling("seed", 1.5, None, "7"), "seed .* whole number"),
    "stop texts": Malformation(
        _sampling("stop", "abc", ["abc"], None, ("",), ("A", 7), ("A" * 257,), ("\ud800",), ("A",) * 17),
        "a tuple of at most 16 texts",
    ),
    "stop text that cannot be": Malformation(
        _sampling("stop", ("\N{LATIN SMALL LETTER E WITH ACUTE}",), ("A", "\0"), ("<end>",)),
        "would never end a response|this is a special token",
    ),
    "stop tokens": Malformation(
        _sampling("stop_token_ids", (96,), (-1,), (2**70,), (1.0,), (True,), (None,)),
        "the model has tokens from 0 to 95",
    ),
    "sampling that did not come": Malformation(_added(_ways), "its sampling is not one of the 1 that came"),
    "samplings of another type": Malformation(
        _column("sampling_of", lambda result: [0], lambda result: np.zeros(99, np.int64)), "sampling_of is not an int64"
    ),
    "draw": Malformation(_added(_draws), "its next draw is not between"),
    "tokens of another type": Malformation(_added(_of_another_type), "begun is not"),
    "tokens of others": Malformation(_brings(extra=1), r"begun is not of \d+ requests"),
    "uneven tokens": Malformation(_brings(log_probs=(-1.0, -1.0)), "more or fewer log-probs or versions than tokens"),
    "all tokens": Malformation(
        _brings(tokens=(5,) * 256, log_probs=(-1.0,) * 256, versions=(0,) * 256), "as many tokens as its response may"
    ),
    "unknown tokens": Malformation(_brings(tokens=(96,)), "a token that is not from 0 to 95"),
    "spoilt log-probs": Malformation(_brings(log_probs=(float("nan"),)), "a log-prob that is not finite"),
    "lists of stop tokens": Malformation(
        _sampling("stop_token_ids", [5], 5, None, (5,) * 65), "a tuple of at most 64 tokens"
    ),
}
