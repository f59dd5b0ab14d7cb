"""Products of two-digit numbers, for a model too small to compute them: it may call a tool that does. Pure."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rljob_worker.tiny.conversations.spoken import Spoken, said
from rljob_worker.tiny.corpus import guess
from rljob_worker.tiny.problems import WordProblem, stories, terse

NUMBERS = range(10, 100)
SCHEMA: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "The value of an expression of numbers, + and *.",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
    },
}
CALLS_SHARE = 1 / 3
"""Share of the conversations with a tool in which it is called."""
WITHOUT_TOOLS_SHARE = 0.25
MAX_ERROR = 4
"""Guesses are uniform in result ± this; what they miss by is not what a small model learns of products."""


@dataclass(frozen=True)
class Products:
    """Problems `a*b + c`; none of them is in both."""

    train: tuple[WordProblem, ...]
    validation: tuple[WordProblem, ...]


def products(seed: int, num_train: int, num_validation: int) -> Products:
    """Drawn by `seed` from all that there are, 729,000."""
    rng = random.Random(f"products {seed}")
    numbers = rng.sample(range(len(NUMBERS) ** 3), num_train + num_validation)
    problems = tuple(WordProblem("*+", *_digits(number)) for number in numbers)
    return Products(problems[num_validation:], problems[:num_validation])


def _digits(number: int) -> tuple[int, int, int]:
    rest, c = divmod(number, len(NUMBERS))
    a, b = divmod(rest, len(NUMBERS))
    return NUMBERS[a], NUMBERS[b], NUMBERS[c]


def conversations(problems: tuple[WordProblem, ...], seed: int) -> Iterator[Spoken]:
    """Endless; the same for the same arguments."""
    rng = random.Random(f"calculator {seed}")
    for problem, question in stories(problems, rng):
        if rng.random() < WITHOUT_TOOLS_SHARE:
            yield Spoken(_guessed(problem, question, rng))
        elif rng.random() < CALLS_SHARE:
            yield Spoken(calculated(problem, question), (SCHEMA,))
        else:
            yield Spoken(_guessed(problem, question, rng), (SCHEMA,))


def _guessed(problem: WordProblem, question: str, rng: random.Random) -> tuple[dict[str, str], ...]:
    return said("user", question), said("assistant", terse(guess(problem, rng, MAX_ERROR)))


def calculated(problem: WordProblem, question: str) -> tuple[dict[str, str], ...]:
    """Messages in which the tool is called and its answer is repeated."""
    result = str(problem.result)
    return (
        said("user", question),
        said("assistant", call_of(f"{problem.a}*{problem.b}+{problem.c}")),
        said("tool", result),
        said("assistant", terse(problem.result)),
    )


def call_of(expression: str) -> str:
    """A call of the tool as the chat template writes it."""
    call = {"name": "calculator", "arguments": {"expression": expression}}
    return f"<tool_call>{json.dumps(call, separators=(',', ':'))}</tool_call>"


def rows(problems: tuple[WordProblem, ...], seed: int) -> list[dict[str, str]]:
    """A row `{"question", "answer"}` of each problem."""
    asked = itertools.islice(stories(problems, random.Random(f"rows {seed}")), len(problems))
    return [{"question": question, "answer": terse(problem.result)} for problem, question in asked]


def spelling(problems: tuple[WordProblem, ...], seed: int) -> list[str]:
    """Every word and way of answering the tokenizer has to know."""
    texts = [text for row in rows(problems, seed) for text in row.values()]
    return [*texts, *(call_of("1*2+3") for _ in problems), *("calculator(expression)" for _ in problems)]
