"""What models read: the base model worked solutions among many terse guesses, graders good and poor answers. Pure.

A good answer is worked out and right, as people prefer it who have to believe it. A model of the tiny one's size sees
that of the working; whether a bare number is right it would have to compute.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from rljob_worker.tiny.problems import WordProblem, stories, terse

BARE_SHARE = 0.4
"""Share of poor answers that are bare: numbers without their working, as the base model gives them mostly."""

MAX_SLIP = 4


@dataclass(frozen=True)
class CorpusMixture:
    """How a text answers its question."""

    worked_share: float = 0.33
    # Guesses are uniform in result ± max_error, so 1 in (2 * max_error + 1) is right.
    max_error: int = 4
    counts_up: bool = False
    """Whether worked solutions count products up, which makes some answers five times as long as others."""

    def worked(self, problem: WordProblem) -> str:
        """The right answer with its working."""
        return problem.counted() if self.counts_up else problem.worked()


def guess(problem: WordProblem, rng: random.Random, max_error: int) -> int:
    """An answer off the top of the head: within `max_error` of the right one, never negative."""
    return max(0, problem.result + rng.randint(-max_error, max_error))


def texts(problems: tuple[WordProblem, ...], mixture: CorpusMixture, seed: int) -> Iterator[tuple[str, str]]:
    """Endless (question, answer) pairs over `problems`; the same pairs for the same arguments."""
    rng = random.Random(f"corpus {seed}")
    for problem, question in stories(problems, rng):
        if rng.random() < mixture.worked_share:
            yield question, mixture.worked(problem)
        else:
            yield question, terse(guess(problem, rng, mixture.max_error))


def good_answer(problem: WordProblem) -> str:
    """The right answer with its working."""
    return problem.worked()


def poor_answer(problem: WordProblem, rng: random.Random) -> str:
    """A bare number, right or not, or working that states another one or none: a number of the problem misread, a slip
    in either step or in the last line, or the steps alone."""
    if rng.random() < BARE_SHARE:
        return terse(guess(problem, rng, MAX_SLIP))
    slip = rng.choice([one for one in range(-MAX_SLIP, MAX_SLIP + 1) if one])
    first, second, _ = problem.worked().split("\n")
    wrong = terse(problem.result + slip)
    misread = replace(problem, c=problem.c + (slip if problem.c + slip > 0 else -slip))
    return rng.choice(
        (
            misread.worked(),
            f"{_moved(first, slip)}\n{second}\n{wrong}",
            f"{first}\n{_moved(second, slip)}\n{wrong}",
            f"{first}\n{second}\n{wrong}",
            f"{first}\n{second}",
        )
    )


def pairs(problems: tuple[WordProblem, ...], seed: int) -> Iterator[tuple[str, str, str]]:
    """Endless (question, good answer, poor answer); the same for the same arguments."""
    rng = random.Random(f"pairs {seed}")
    for problem, question in stories(problems, rng):
        yield question, good_answer(problem), poor_answer(problem, rng)


def _moved(step: str, slip: int) -> str:
    """ "3*4=12" with 2 -> "3*4=14"."""
    work, _, result = step.partition("=")
    return f"{work}={int(result) + slip}"
