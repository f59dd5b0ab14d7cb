"""What the base model reads before RL: a few worked solutions among many terse guesses."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from rljob_worker.tiny.problems import Problem, stories, terse


@dataclass(frozen=True)
class Mixture:
    """How a text answers its question."""

    worked_share: float = 0.33
    # Guesses are uniform in result ± max_error, so 1 in (2 * max_error + 1) is right.
    max_error: int = 4


def guess(problem: Problem, rng: random.Random, max_error: int) -> int:
    """An answer off the top of the head: within `max_error` of the right one, never negative."""
    return max(0, problem.result + rng.randint(-max_error, max_error))


def texts(problems: tuple[Problem, ...], mixture: Mixture, seed: int) -> Iterator[tuple[str, str]]:
    """Endless (question, answer) pairs over `problems`; the same pairs for the same arguments."""
    rng = random.Random(f"corpus {seed}")
    for problem, question in stories(problems, rng):
        if rng.random() < mixture.worked_share:
            yield question, problem.worked()
        else:
            yield question, terse(guess(problem, rng, mixture.max_error))
