"""`Word`: one stable word that people and alerts match, with the sentence that docs/conditions.md gives it."""

from __future__ import annotations

from enum import StrEnum
from typing import Self


class Word(StrEnum):
    """Members are written `NAME = "Word", "What it means."`."""

    meaning: str
    """One sentence for docs/conditions.md."""

    def __new__(cls, value: str, meaning: str = "") -> Self:
        member = str.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member
