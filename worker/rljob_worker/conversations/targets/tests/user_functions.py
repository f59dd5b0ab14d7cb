"""Functions as users write them, for models to call."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict


class Place(TypedDict):
    x: float
    name: NotRequired[str]


def search(text: str, most: int = 5, kind: Literal["web", "news"] = "web", *, index: str = "") -> list[str]:
    """Find pages.

    More than a line.

    Args:
        text: words to look for,
            best few
        most (int): pages at most

    Returns:
        Titles.
    """
    return [f"{index}{kind}:{text}"] * most


def go(place: Place, tags: list[str] | None = None, options: dict[str, bool] | None = None) -> str:
    """Go to a place.

    :param place: where to
    :param list tags: why
    """
    return f"{place} {tags} {options}"


def noted(a: Annotated[int, "the first"], call_key: str = "") -> int:
    return a


def zoom(left: int, pictures: list[bytes]) -> str:
    """Look closer.

    Args:
        left: in pixels
    """
    return f"{left} of {[len(encoded) for encoded in pictures]}"


class Magnifier:
    """Looks closer and closer."""

    def __init__(self) -> None:
        self.factor = 1

    def call(self, pictures: list[bytes]) -> str:
        self.factor *= 2
        return f"{self.factor} x {pictures[0].hex()}"


class Counter:
    """Counts from where it began."""

    def __init__(self, start: int) -> None:
        self.count = start

    def call(self, by: int) -> int:
        self.count += by
        return self.count


class NotCallable:
    pass


@dataclass
class Point:
    x: int


def untyped(a) -> int:  # type: ignore[no-untyped-def]
    return int(a)


def of_points(a: list[Point]) -> int:
    return len(a)


def of_many(*a: int) -> int:
    return sum(a)


def of_unknown(a: Missing) -> int:  # type: ignore[name-defined]  # noqa: F821
    return 0


number = 3
anything: Any = None


def fills(mebibytes: int) -> int:
    """Take memory and keep it."""
    kept = bytearray(mebibytes << 20)
    for at in range(0, len(kept), 4096):
        kept[at] = 1
    time.sleep(1000)
    return len(kept)


_CALLS: list[int] = []


def counted() -> int:
    """Count the calls of this process."""
    _CALLS.append(1)
    return len(_CALLS)


def left() -> tuple[list[str], str]:
    """Name the files of the working directory and the directory itself, and leave a file there."""
    files = os.listdir()
    Path("mark").touch()
    return files, os.getcwd()
