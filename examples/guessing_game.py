"""The environment of guessing-game.yaml."""

from __future__ import annotations

LEAST, MOST, TURNS = 1, 31, 4


class GuessingGame:
    """Thinks of a number; a guess that is wrong is answered with `higher` or `lower`. Reward 1 for the right one."""

    def reset(self, seed: int, number: str = "") -> str:
        """A new game. number: of the data, or one that the seed chooses."""
        self.number = int(number) if number else LEAST + seed % (MOST - LEAST + 1)
        self.turns_left = TURNS
        return ""

    def step(self, text: str) -> tuple[str, float, bool]:
        """The answer to a guess, its reward, and whether the game is over. What is no number ends it."""
        self.turns_left -= 1
        if not text.strip().isdecimal():
            return "that is no number", 0.0, True
        guess = int(text)
        if guess == self.number:
            return "right", 1.0, True
        return ("higher" if self.number > guess else "lower"), 0.0, self.turns_left == 0
