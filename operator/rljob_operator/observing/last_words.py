"""What a launcher left as its container's termination message."""

from __future__ import annotations

from dataclasses import dataclass

from rljob_operator.observing.values import MAX_MESSAGE_LENGTH, Unreadable, parsed, whole, words


@dataclass(frozen=True)
class LastWords:
    """Why a worker ended, and how far it was, where it says so."""

    cause: str = ""
    step: int | None = None
    checkpoint: int | None = None


def last_words(message: str) -> LastWords:
    """The launcher's JSON; any other text is the cause."""
    try:
        found = parsed(message)
    except Unreadable:
        found = None
    if not isinstance(found, dict):
        return LastWords(words(message.strip(), MAX_MESSAGE_LENGTH))
    worker = words(found.get("worker"))
    cause = words(found.get("cause"), MAX_MESSAGE_LENGTH - len(worker) - 2)
    return LastWords(
        f"{worker}: {cause}" if cause and worker else cause, whole(found.get("step")), whole(found.get("checkpoint"))
    )
