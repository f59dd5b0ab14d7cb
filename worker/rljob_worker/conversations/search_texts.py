"""A tool that searches a local folder of texts.

    tools:
      - run: rljob_worker.conversations.search_texts:SearchTexts
        name: search
        options: {folder: /data/wiki}

Texts are ranked by BM25 over their words (Robertson and Zaragoza 2009), with k1 = 1.2 and b = 0.75. The index is made
once in each process and shared by all trajectories that it serves.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

K1, B = 1.2, 0.75
_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class TextIndex:
    """Texts by name, and how often each word is in which."""

    texts: dict[str, str]
    lengths: dict[str, int]
    """Words of each text."""
    counts: dict[str, dict[str, int]]
    """By word and name."""

    def best(self, query: str, most: int) -> list[str]:
        """Names of the texts that fit best, at most so many; equal ones in the order of their names."""
        scores: dict[str, float] = {}
        mean = sum(self.lengths.values()) / max(1, len(self.lengths))
        for word in set(words_of(query)):
            places = self.counts.get(word, {})
            rarity = math.log(1 + (len(self.texts) - len(places) + 0.5) / (len(places) + 0.5))
            for name, count in places.items():
                length = 1 - B + B * self.lengths[name] / mean
                scores[name] = scores.get(name, 0.0) + rarity * count * (K1 + 1) / (count + K1 * length)
        return sorted(scores, key=lambda name: (-scores[name], name))[:most]


class SearchTexts:
    """Searches the texts of a folder."""

    def __init__(self, folder: str, suffix: str = ".txt", most_characters: int = 1000) -> None:
        """suffix: of the names of files that are texts.   most_characters: that the model is shown of one."""
        self._index, self._most_characters = index_of(folder, suffix), most_characters

    def call(self, query: str, most: int = 3) -> str:
        """Find the texts that fit a query best.

        Args:
            query: words to look for
            most: how many texts, at most
        """
        names = self._index.best(query, max(1, min(most, 10)))
        parts = [f"{name}:\n{self._index.texts[name][: self._most_characters]}" for name in names]
        return "\n\n".join(parts) or "no text has any of these words"


@cache
def index_of(folder: str, suffix: str) -> TextIndex:
    """The index of a folder and those below it. Raises ValueError: it has no such file, or one that is not UTF-8."""
    texts: dict[str, str] = {}
    for path in sorted(Path(folder).rglob(f"*{suffix}")):
        try:
            texts[path.relative_to(folder).as_posix()] = path.read_text()
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not a text in UTF-8: {error.reason} at byte {error.start}") from error
    if not texts:
        raise ValueError(f"the folder {folder} has no file whose name ends with {suffix}")
    counts: dict[str, dict[str, int]] = {}
    for name, text in texts.items():
        for word, count in Counter(words_of(text)).items():
            counts.setdefault(word, {})[name] = count
    return TextIndex(texts, {name: len(words_of(text)) for name, text in texts.items()}, counts)


def words_of(text: str) -> list[str]:
    """Words in lower case."""
    return _WORD.findall(text.lower())
