"""Word problems for a team: a solver, and a checker who is shown what the solver says and has the last word. Pure."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

from rljob_worker.tiny.conversations.spoken import Spoken, said
from rljob_worker.tiny.corpus import guess
from rljob_worker.tiny.problems import WordProblem, stories, terse

SOLVER = "solver"
"""What the checker hears the solver called."""
RIGHT, WRONG = "right", "wrong"
SOLVER_SHARE = 2 / 3
"""Share of conversations in which the model is the solver, who has more to learn; in the others it is the checker."""
WORKED_SHARE = 0.4
"""Share of the solver's answers that are worked out; the others are guesses."""
AGREES_SHARE = 1 / 3
"""Share of the checker's answers that repeat the solver's number; the others are guesses."""
MAX_ERROR = 4


def conversations(problems: tuple[WordProblem, ...], seed: int) -> Iterator[Spoken]:
    """Endless; the same for the same arguments."""
    rng = random.Random(f"team {seed}")
    for problem, question in stories(problems, rng):
        answer = solved(problem, rng)
        if rng.random() < SOLVER_SHARE:
            yield Spoken((said("user", question), said("assistant", answer)))
        else:
            yield Spoken(
                (said("user", shown_to_checker(question, answer)), said("assistant", checked(problem, answer, rng)))
            )


def solved(problem: WordProblem, rng: random.Random) -> str:
    """What the solver says."""
    return problem.worked() if rng.random() < WORKED_SHARE else terse(guess(problem, rng, MAX_ERROR))


def shown_to_checker(question: str, answer: str) -> str:
    """The checker's message of the user, as a conversation of a team writes it."""
    return f"{question}\n\n{SOLVER}: {answer}"


def checked(problem: WordProblem, answer: str, rng: random.Random) -> str:
    """What the checker says: that the answer is right, and its last line again; or that it is wrong, and a guess."""
    if rng.random() < AGREES_SHARE:
        return f"{RIGHT}\n{answer.splitlines()[-1]}"
    return f"{WRONG}\n{terse(guess(problem, rng, MAX_ERROR))}"


def spelling(problems: tuple[WordProblem, ...], rows: list[dict[str, str]], seed: int) -> list[str]:
    """Every word and way of answering the tokenizer has to know. rows: of the data."""
    read = itertools.islice(conversations(problems, seed), len(rows))
    return [
        *(text for row in rows for text in row.values()),
        *(m["content"] for spoken in read for m in spoken.messages),
    ]
