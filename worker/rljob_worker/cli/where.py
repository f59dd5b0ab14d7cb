"""Conditions on records, as `--where` has them: `reward<0.5`, `rewards.correct=1`, `response~answer`. Pure."""

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rljob_worker.errors import InvalidJob

_OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "!=": operator.ne,
    "==": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
    "=": operator.eq,
}
_FORM = re.compile(r"\s*([\w.\->]*?\w)\s*(<=|>=|!=|==|<|>|=|~)\s*(.*?)\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Condition:
    """A field, how it is compared, and with what."""

    field: str
    sign: str
    value: str

    def holds(self, record: Mapping[str, Any]) -> bool:
        """Never for a record that lacks the field. Numbers are compared as numbers, everything else as text; `~` looks
        for a text inside. Raises InvalidJob where the field is a number and what it is compared with is none."""
        found = value_at(record, self.field)
        if found is None:
            return False
        if self.sign == "~":
            return self.value in str(found)
        if isinstance(found, bool):
            return _OPERATORS[self.sign](str(found).lower(), self.value.lower())
        if isinstance(found, int | float):
            return _OPERATORS[self.sign](found, self._number())
        return _OPERATORS[self.sign](str(found), self.value)

    def _number(self) -> float:
        try:
            return float(self.value)
        except ValueError:
            message = (
                f"--where '{self.field}{self.sign}{self.value}': {self.field} is a number, and {self.value!r} is none"
            )
            raise InvalidJob(f"{message}; write one, or {self.field}~{self.value} for a text inside") from None


def parse_condition(text: str) -> Condition:
    """Raises InvalidJob for what is no condition."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise InvalidJob(
            f"--where {text!r} is no condition; write FIELD, one of < <= > >= = != ~, and a value: 'reward<0.5', "
            "'rewards.correct=1' or 'response~answer' (~ looks for a text inside)"
        )
    return Condition(*match.groups())


def value_at(record: Mapping[str, Any], field: str) -> Any:
    """The value of `rewards.correct`, None where there is none."""
    found: Any = record
    for name in field.split("."):
        if not isinstance(found, Mapping) or name not in found:
            return None
        found = found[name]
    return found
