"""A game of guessing a number in four turns, and how well it is played, computed over all numbers. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rljob_worker.tiny.conversations.spoken import Spoken, said

NUMBERS = range(1, 32)
TURNS = 4
QUESTION = "Guess a number from 1 to 31 in 4 turns."
HIGHER, LOWER = "higher", "lower"
OPTIMAL = 15 / 31
"""Part of the numbers that bisection guesses in four turns: 1 + 2 + 4 + 8 of 31."""

BISECTION_SHARE = 0.25
CONSISTENT_SHARE = 0.5
"""Shares of games that are played by bisection, and by any number that the answers leave; in the others it is any
number at all."""

Answered = tuple[tuple[int, str], ...]
"""Guesses, each with its answer."""


@dataclass(frozen=True)
class Success:
    """How often a policy guesses the number."""

    probability: float
    """Mean over all numbers."""
    left_out: float
    """Probability of games that were too unlikely to be followed, at most by which `probability` is too low."""


def hint(guess: int, number: int) -> str:
    """What is said to a wrong guess."""
    return HIGHER if number > guess else LOWER


def possible(answered: Answered) -> range:
    """Numbers that the answers leave."""
    least = max((guess + 1 for guess, answer in answered if answer == HIGHER), default=NUMBERS[0])
    most = min((guess - 1 for guess, answer in answered if answer == LOWER), default=NUMBERS[-1])
    return range(least, most + 1)


def messages(answered: Answered) -> tuple[dict[str, str], ...]:
    """The conversation so far."""
    turns = ((said("assistant", str(guess)), said("user", answer)) for guess, answer in answered)
    return said("user", QUESTION), *(message for turn in turns for message in turn)


def conversations(seed: int) -> Iterator[Spoken]:
    """Endless games; the same for the same seed."""
    rng = random.Random(f"guessing game {seed}")
    while True:
        yield Spoken(_game(rng.choice(NUMBERS), _player(rng)))


def _player(rng: random.Random) -> Callable[[Answered], int]:
    kind = rng.random()
    if kind < BISECTION_SHARE:
        return lambda answered: (possible(answered)[0] + possible(answered)[-1]) // 2
    if kind < BISECTION_SHARE + CONSISTENT_SHARE:
        return lambda answered: rng.choice(possible(answered))
    return lambda answered: rng.choice(NUMBERS)


def _game(number: int, player: Callable[[Answered], int]) -> tuple[dict[str, str], ...]:
    answered: Answered = ()
    for _ in range(TURNS):
        guess = player(answered)
        if guess == number:
            break
        answered = (*answered, (guess, hint(guess, number)))
    else:
        return messages(answered)[:-1]
    return *messages(answered), said("assistant", str(guess))


def rows() -> list[dict[str, str]]:
    """A row `{"question", "number"}` of each number."""
    return [{"question": QUESTION, "number": str(number)} for number in NUMBERS]


def spelling() -> list[str]:
    """Every word the tokenizer has to know."""
    return [QUESTION, HIGHER, LOWER] * 2


Chances = Callable[[Sequence[Answered]], Sequence[Sequence[float]]]
"""How probable each of NUMBERS is as the next guess, in several games so far; what else may be said is missing."""


def success(chances: Chances, least: float = 1e-6) -> Success:
    """How often the number is guessed, over all numbers and all guesses a policy may make.

    least: probability of a game so far below which it is not followed.
    """
    games: dict[Answered, float] = {(): 1.0}
    won = left_out = 0.0
    for turns_left in reversed(range(TURNS)):
        follow: dict[Answered, float] = {}
        for game, guesses in zip(games, chances(list(games)), strict=True):
            left = possible(game)
            won += games[game] * sum(guesses[number - NUMBERS[0]] for number in left) / len(NUMBERS)
            for guess, chance in zip(NUMBERS, guesses, strict=True) if turns_left else ():
                for answer, number in (
                    (HIGHER, left[-1] - max(guess, left[0] - 1)),
                    (LOWER, min(guess, left[-1] + 1) - left[0]),
                ):
                    if number > 0 and games[game] * chance >= least:
                        follow[(*game, (guess, answer))] = games[game] * chance
                    elif number > 0:
                        left_out += games[game] * chance * number / len(NUMBERS)
        games = follow
    return Success(won, left_out)
