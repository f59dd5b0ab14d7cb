"""Pauses before a process that ended is started again."""

LONG_LIFE_SECONDS = 60.0
"""A process that lived so long was of use: the next pause is the shortest again."""
LONGEST_PAUSE_SECONDS = 60.0


def pause_seconds(num_short_lives: int) -> float:
    """Before a process starts again: 1, 2, 4 ... 60 seconds after so many short lives in a row."""
    return min(2.0 ** max(0, num_short_lives - 1), LONGEST_PAUSE_SECONDS)
