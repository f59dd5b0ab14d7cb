"""Reward functions in the forms of other trainers, as functions of one row.

    row form   def reward(row, **options) -> float | dict
    TRL        def reward(completions, **columns) -> list[float]          lists, here of one row
    verl       def compute_score(data_source, solution_str, ground_truth, extra_info=None) -> float | dict

The form is known by the names of the parameters, which both trainers pass by name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

Function = Callable[..., Any]

_TRL = "completions"
_VERL = frozenset({"solution_str", "ground_truth"})
_GIVEN = frozenset({"prompts", _TRL, "data_source", "extra_info", *_VERL})
_NOT_COLUMNS = frozenset({"prompt", "response", "row_id", "num_response_tokens"})


def in_row_form(function: Function) -> Function:
    """The function itself where it is of no other form."""
    try:
        parameters = inspect.signature(function).parameters
    except (ValueError, TypeError):  # a builtin without a readable signature
        return function
    if _TRL in parameters:
        return _of_row(function, parameters, _trl_arguments, _trl_result)
    if parameters.keys() >= _VERL:
        return _of_row(function, parameters, _verl_arguments, _verl_result)
    return function


def _of_row(
    function: Function,
    parameters: Mapping[str, inspect.Parameter],
    arguments: Callable[[Mapping[str, Any]], dict[str, Any]],
    result: Callable[[Any], Any],
) -> Function:
    takes_all = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())

    def taken(row: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in arguments(row).items() if takes_all or name in parameters}

    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def reward(row: Mapping[str, Any], **options: Any) -> Any:
            return result(await function(**taken(row), **options))
    else:

        @wraps(function)
        def reward(row: Mapping[str, Any], **options: Any) -> Any:
            return result(function(**taken(row), **options))

    reward.__signature__ = _row_signature(parameters)  # type: ignore[attr-defined]
    return reward


def _row_signature(parameters: Mapping[str, inspect.Parameter]) -> inspect.Signature:
    """`(row, *, ...)` with what may come as an option: every parameter that neither trainer fills itself."""
    row = inspect.Parameter("row", inspect.Parameter.POSITIONAL_ONLY)
    rest = [
        _as_keyword(each)
        for name, each in parameters.items()
        if name not in _GIVEN and each.kind is not inspect.Parameter.VAR_POSITIONAL
    ]
    return inspect.Signature([row, *rest])


def _as_keyword(parameter: inspect.Parameter) -> inspect.Parameter:
    if parameter.kind is inspect.Parameter.VAR_KEYWORD:
        return parameter
    return parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, default=None)


def _trl_arguments(row: Mapping[str, Any]) -> dict[str, Any]:
    columns = {name: [value] for name, value in row.items() if name not in _NOT_COLUMNS}
    return {"prompts": [row["prompt"]], _TRL: [row["response"]], **columns}


def _trl_result(rewards: Any) -> float:
    """None says that the function has nothing to say of this row, which TRL leaves out of the sum."""
    (reward,) = rewards
    return 0.0 if reward is None else reward


def _verl_arguments(row: Mapping[str, Any]) -> dict[str, Any]:
    extra = {name: value for name, value in row.items() if name not in _NOT_COLUMNS | {"source", "reference"}}
    return {
        "data_source": row["source"],
        "solution_str": row["response"],
        "ground_truth": row["reference"],
        "extra_info": extra,
    }


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
