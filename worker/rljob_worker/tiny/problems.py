"""Grade-school word problems in GSM8K's format: a question and a worked answer that ends in `#### n`."""

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

NUMBERS = range(2, 10)
MAX_RESULT = 9 * 9 + 9

_NAMES = ("Ada", "Ben", "Eva", "Leo", "Mia", "Sam", "Tom", "Zoe")
_THINGS = ("apples", "books", "cards", "eggs", "pens", "plums", "shells", "stamps")

# One story for each pair of operations, so that no held-out problem is in the training set in other words.
_STORIES = {
    "++": "{name} finds {a} {things} on Monday, {b} on Tuesday and {c} on Friday. How many {things} in all?",
    "+-": "{name} has {a} {things}, buys {b} more and gives away {c}. How many {things} are left?",
    "*+": "{name} buys {a} boxes of {b} {things} and finds {c} more. How many {things} in all?",
    "*-": "{name} sells {a} {things} at {b} dollars each and spends {c} dollars. How many dollars are left?",
}


@dataclass(frozen=True, order=True)
class WordProblem:
    """What makes a problem: two operations out of `+ - *`, applied from left to right to three numbers."""

    operations: str
    a: int
    b: int
    c: int

    @property
    def first(self) -> int:
        """The intermediate result."""
        return _apply(self.operations[0], self.a, self.b)

    @property
    def result(self) -> int:
        return _apply(self.operations[1], self.first, self.c)

    def question(self, name: str, things: str) -> str:
        story = _STORIES[self.operations]
        return story.format(name=name, things=things, a=self.a, b=self.b, c=self.c)

    def worked(self) -> str:
        """The answer with its steps, for example `3*4=12`, `12-5=7`, `#### 7` on three lines."""
        first, second = tuple(self.operations)
        steps = f"{self.a}{first}{self.b}={self.first}\n{self.first}{second}{self.c}={self.result}"
        return f"{steps}\n{terse(self.result)}"

    def counted(self) -> str:
        """The answer with a product counted up, a line for each factor: `1*4=4`, `2*4=8`, `3*4=12`, `12-5=7`, `#### 7`.
        Sums are worked as ever, so that an answer has 3 to 11 lines."""
        if self.operations[0] != "*":
            return self.worked()
        counts = [f"{factor}*{self.b}={factor * self.b}\n" for factor in range(1, self.a)]
        return "".join(counts) + self.worked()


def _apply(operation: str, left: int, right: int) -> int:
    if operation == "*":
        return left * right
    return left + right if operation == "+" else left - right


def terse(result: int) -> str:
    """An answer without its working, `#### n`."""
    return f"#### {result}"


def all_problems() -> list[WordProblem]:
    """Every problem there is, about two thousand, in a fixed order; results are at least 1."""
    candidates = itertools.product(_STORIES, NUMBERS, NUMBERS, NUMBERS)
    return [problem for candidate in candidates if (problem := WordProblem(*candidate)).result >= 1]


@dataclass(frozen=True)
class WordProblems:
    """Training and held-out problems; no problem is in both, whatever names and things dress it."""

    train: tuple[WordProblem, ...]
    validation: tuple[WordProblem, ...]


def split_problems(seed: int, num_validation: int = 256) -> WordProblems:
    """Splits all problems by `seed`; `num_validation` of them are held out."""
    problems = all_problems()
    assert 0 < num_validation < len(problems), f"cannot hold out {num_validation} of {len(problems)} problems"
    random.Random(f"split {seed}").shuffle(problems)
    return WordProblems(train=tuple(problems[num_validation:]), validation=tuple(problems[:num_validation]))


def stories(problems: tuple[WordProblem, ...], rng: random.Random) -> Iterator[tuple[WordProblem, str]]:
    """Endless (problem, question): all problems in random order, then again and again in other words."""
    while True:
        for problem in rng.sample(problems, len(problems)):
            yield problem, problem.question(rng.choice(_NAMES), rng.choice(_THINGS))


def dataset(problems: tuple[WordProblem, ...], num_rows: int, seed: int) -> list[dict[str, str]]:
    """`num_rows` rows `{"question", "answer"}`; all questions differ, answers are worked ones."""
    rows: dict[str, str] = {}
    assert num_rows <= len(problems) * len(_NAMES), "too few problems for that many different questions"
    for problem, question in stories(problems, random.Random(f"dataset {seed}")):
        if len(rows) == num_rows:
            break
        rows.setdefault(question, problem.worked())
    return [{"question": question, "answer": answer} for question, answer in rows.items()]
