"""True and false answers to problems, for models that learn to tell them apart. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from rljob_worker.tiny.corpus import guess
from rljob_worker.tiny.problems import Problem, stories, terse

TERSE_SHARE = 0.3
"""Of answers without their working."""

MAX_SLIP = 4


def true_answer(problem: Problem, rng: random.Random) -> str:
    """The right answer, mostly with its working."""
    return terse(problem.result) if rng.random() < TERSE_SHARE else problem.worked()


def false_answer(problem: Problem, rng: random.Random) -> str:
    """An answer that states another number, or none: a guess, a number of the problem misread, a slip in either step or
    in the last line, or the working alone."""
    kind = rng.choice(("guess", "misread", "first", "second", "last", "cut"))
    slip = rng.choice([one for one in range(-MAX_SLIP, MAX_SLIP + 1) if one])
    if kind == "guess":
        found = guess(problem, rng, MAX_SLIP)
        return terse(found if found != problem.result else problem.result + MAX_SLIP)
    if kind == "misread":
        other = replace(problem, c=problem.c + (slip if problem.c + slip > 0 else -slip))
        return other.worked()
    first, second, last = problem.worked().split("\n")
    if kind == "cut":
        return f"{first}\n{second}"
    if kind == "first":
        return f"{_moved(first, slip)}\n{second}\n{terse(problem.result + slip)}"
    if kind == "second":
        return f"{first}\n{_moved(second, slip)}\n{terse(problem.result + slip)}"
    return f"{first}\n{second}\n{terse(problem.result + slip)}"


def pairs(problems: tuple[Problem, ...], seed: int) -> Iterator[tuple[str, str, str]]:
    """Endless (question, true answer, false answer); the same for the same arguments."""
    rng = random.Random(f"pairs {seed}")
    for problem, question in stories(problems, rng):
        yield question, true_answer(problem, rng), false_answer(problem, rng)


def _moved(step: str, slip: int) -> str:
    """ "3*4=12" with 2 -> "3*4=14"."""
    work, _, result = step.partition("=")
    return f"{work}={int(result) + slip}"
