"""The shipped reward for mathematics: is the response's final answer equal to the reference, as mathematics?

Built on math-verify (https://github.com/huggingface/Math-Verify). Its own time limit, an alarm signal, is off: the
reward's process is stopped from outside when a row takes too long, which also ends a parser that holds the interpreter.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from math_verify import parse, verify
from sympy import Eq, Float, Rational

from rljob_worker.rewards.functions import MARK, Judgement, number_of

# math-verify warns once that its own time limit is off; the limit is the reward's `timeoutSeconds`.
for _name in ("math_verify.parser", "math_verify.grader"):
    logging.getLogger(_name).setLevel(logging.ERROR)


def math_answer(row: Mapping[str, Any]) -> Judgement:
    r"""1.0 when the answers agree: `#### 42`, `\boxed{\frac{1}{2}}`, `$x=3$` or the last number of plain text.

    `row["reference"]` may be the bare answer, LaTeX, or a worked solution that ends in `#### answer`.
    """
    gold = _gold(row["reference"])
    result = parse(_answer_text(row["response"]), parsing_timeout=None)
    if not result:
        return {"reward": 0.0, "answer": None}
    return {"reward": float(bool(verify(list(gold), result, timeout_seconds=None))), "answer": _written(result[0])}


def _written(value: Any) -> str:
    r"""One text for what is written in several ways: `\frac12`, `0.5` and `x = 1/2` are all `1/2`."""
    if isinstance(value, Eq) and value.lhs.is_Symbol:
        value = value.rhs
    if isinstance(value, Float):
        value = Rational(str(value))
    return str(value)


def _answer_text(text: str) -> str:
    """What follows the last mark, up to the line's end; the whole text when there is none."""
    _, mark, tail = text.rpartition(MARK)
    return tail.strip().partition("\n")[0] if mark and tail.strip() else text


@lru_cache(maxsize=4096)
def _gold(reference: str) -> tuple[Any, ...]:
    """The reference parsed; bare LaTeX such as `(1, \\pi)` is read as if it stood between dollar signs."""
    text = _answer_text(reference).strip()
    attempts = [text, f"${text}$"] if number_of(text) is not None and "\\" not in text else [f"${text}$", text]
    for attempt in attempts:
        if parsed := parse(attempt, parsing_timeout=None):
            return tuple(parsed)
    raise ValueError(
        f"the reference {reference!r} holds no mathematical answer; the reward's `column` must be the answer"
    )


# The first parse compiles large patterns; doing it at import keeps it out of the first row's time limit.
verify(parse("$1$", parsing_timeout=None), parse(r"\boxed{1}", parsing_timeout=None), timeout_seconds=None)
