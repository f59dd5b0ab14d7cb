"""Reward functions in the forms of other trainers, as functions of one row.

    row form   def reward(row, **options) -> float | dict
    TRL        def reward(completions, **columns) -> list[float]          lists, here of one row
    verl       def compute_score(data_source, solution_str, ground_truth, extra_info=None) -> float | dict

The form is known by the names of the parameters, which both trainers pass by name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import wraps
from typing import Any, NamedTuple

Function = Callable[..., Any]
Parameters = Mapping[str, inspect.Parameter]
Row = Mapping[str, Any]

PICTURES = "pictures"
"""What a row has besides of a model that sees: the encoded pictures of its prompt, a list of bytes."""

VIDEOS = "videos"
"""What a row has besides of jobs with videos: those of its prompt, encoded, a list of bytes."""

SHOWN = (PICTURES, VIDEOS)


class BadAnswer(ValueError):
    """A reward answered something that is not a reward."""


_TRL = "completions"
_VERL = frozenset({"solution_str", "ground_truth"})
_TEXTS = {"prompt": "", "response": "", "row_id": 0, "num_response_tokens": 0}
"""What every row has besides columns."""


def in_row_form(function: Function) -> Function:
    """The function itself where it is of no other form."""
    parameters = _parameters(function)
    form = _form_of(parameters)
    if form is None:
        return function
    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def reward(row: Row, **options: Any) -> Any:
            return form.result(await function(**_taken(parameters, form.arguments(row)), **options))
    else:

        @wraps(function)
        def reward(row: Row, **options: Any) -> Any:
            return form.result(function(**_taken(parameters, form.arguments(row)), **options))

    return reward


def row_columns(column: str | None, columns: Collection[str]) -> list[str]:
    """What a row has of the data. column: the reward's own, if it names one.   columns: all that go with rows."""
    return [*columns, "source", *(["reference"] if column is not None else [])]


def brought(function: Function, columns: Collection[str]) -> list[str] | None:
    """Names of the keywords that a row with these columns brings to a function of another form; None for one of a
    row."""
    parameters = _parameters(function)
    form = _form_of(parameters)
    return None if form is None else list(_taken(parameters, form.arguments(dict.fromkeys(columns, "") | _TEXTS)))


class ByName(NamedTuple):
    """The parameter of a function that has columns by their names."""

    parameter: str
    names: frozenset[str]
    """What may be there."""


def columns_by_name(function: Function, columns: Collection[str], options: Collection[str]) -> ByName | None:
    """The row itself, or what takes other keywords of a function in another form; None where there is no such.

    columns: what a row has of the data.   options: names of the reward's.
    """
    parameters = _parameters(function)
    if _form_of(parameters) is None:
        return ByName(next(iter(parameters)), frozenset({*columns, *_TEXTS})) if parameters else None
    rest = (name for name, item in parameters.items() if item.kind is inspect.Parameter.VAR_KEYWORD)
    return next((ByName(name, frozenset({*columns, *options, "prompts", _TRL})) for name in rest), None)


class _Form(NamedTuple):
    arguments: Callable[[Row], dict[str, Any]]
    """Keywords of the function, of which it gets those that it takes."""
    result: Callable[[Any], Any]


def _form_of(parameters: Parameters) -> _Form | None:
    if _TRL in parameters:
        return _Form(_trl_arguments, _trl_result)
    return _Form(_verl_arguments, _verl_result) if parameters.keys() >= _VERL else None


def _parameters(function: Function) -> Parameters:
    try:
        return inspect.signature(function).parameters
    except (ValueError, TypeError):  # a builtin without a readable signature
        return {}


def _taken(parameters: Parameters, arguments: Mapping[str, Any]) -> dict[str, Any]:
    takes_all = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    return {name: value for name, value in arguments.items() if takes_all or name in parameters}


def _trl_arguments(row: Row) -> dict[str, Any]:
    columns = {name: [value] for name, value in row.items() if name not in _TEXTS}
    return {"prompts": [row["prompt"]], _TRL: [row["response"]], **columns}


def _trl_result(rewards: Any) -> dict[str, Any]:
    """None says that the function has nothing to say of this row, which TRL leaves out of the sum; a mean over rows
    makes a fraction of the figure beside it. Raises BadAnswer for anything but a list of one."""
    if not isinstance(rewards, Iterable):
        raise BadAnswer(f"returned a {type(rewards).__name__}, not a list with a reward for each completion")
    listed = list(rewards)
    if len(listed) != 1:
        raise BadAnswer(f"returned {len(listed)} rewards for 1 completion")
    (reward,) = listed
    return {"reward": 0.0 if reward is None else reward, "none_fraction": reward is None}


def _verl_arguments(row: Row) -> dict[str, Any]:
    truth = {"ground_truth": row["reference"]} if "reference" in row else {}
    extra = {name: value for name, value in row.items() if name not in {*_TEXTS, "source", "reference"}}
    return {"data_source": row["source"], "solution_str": row["response"], **truth, "extra_info": extra}


def _verl_result(score: Any) -> Any:
    """A dictionary's `score` is the reward, its `pred` the answer, its other numbers are metrics, and everything else
    is left out."""
    if not isinstance(score, Mapping):
        return score
    numbers = {
        name: value for name, value in score.items() if isinstance(value, int | float) and name not in _VERL_SAID
    }
    answer = {"answer": score["pred"]} if isinstance(score.get("pred"), str | int | float) else {}
    return {**numbers, **answer, "reward": score["score"]}


_VERL_SAID = ("score", "pred")
