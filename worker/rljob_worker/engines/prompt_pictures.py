"""Tokens with pictures, as a model sees them: which of them stand for pictures, and where every token is. They are a
prompt, or a row up to its last picture.

    token_ids   a  <start>  #  #  #  #  <end>  b        a picture of 2 x 2 features
    places      2 3 4 5                                 of the tokens whose embeddings are features of a picture
    rope        t  0 1 2 2 2 2 4 5                      a text token is at one number in all three, a feature at frame,
                h  0 1 2 2 3 3 4 5                      row and column of its picture
                w  0 1 2 3 2 3 4 5

Two prompts of the same tokens differ where their pictures do: what is shared goes by group and pictures, never by token
ids alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rljob_worker.batch import Indices


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """One picture, or the frames of one video."""

    digest: bytes
    """Equal only for equal pictures."""
    pixel_values: NDArray[np.float32]
    """[patches, channels x frames x height x width]"""
    grid: Indices
    """int64 [3]: patches by frames, rows and columns."""
    num_features: int
    """Embeddings that a model makes of it, as many as it has tokens."""
    is_video: bool = False
    seconds: float = 0.0
    """From the frames of a patch to those of the next, of a video."""


@dataclass(frozen=True, slots=True, eq=False)
class ShownTokens:
    """What the first tokens of one row show: those of its prompt, and what comes behind it up to its last picture."""

    places: Indices
    """[features of all pictures] places in the row, ascending."""
    pictures: tuple[Picture, ...]
    """In the order of their tokens."""
    rope: Indices
    """int64 [tokens, 3]: frame, row and column of each token."""

    @property
    def rope_shift(self) -> int:
        """What is added to the place of a token behind these to get its position."""
        return int(self.rope.max()) + 1 - len(self.rope)

    @property
    def identity(self) -> tuple[bytes, ...]:
        """Equal where pictures are the same."""
        return tuple(picture.digest for picture in self.pictures)


@dataclass(frozen=True, slots=True)
class RowPictures:
    """The pictures of some rows, none of which is opened before it is asked for."""

    identities: Indices
    """int64 [rows]: prompts with equal numbers have the same pictures."""
    of_row: Callable[[int], ShownTokens]
    in_responses: bool = False
    """Whether rows may have pictures behind their prompts; without, what a row shows is what its prompt does."""


def rope_of_sequences(
    places: Indices, shown: Sequence[ShownTokens], starts: Sequence[int], lengths: Sequence[int]
) -> Indices:
    """Frame, row and column of each token of packed sequences, int64 [3, tokens], from its place in its own [tokens].
    Each begins with a prompt that shows something, and what follows goes on behind the largest of that."""
    rope = np.repeat(places[None], 3, axis=0)
    for prompt, start, length in zip(shown, starts, lengths, strict=True):
        end = start + len(prompt.rope)
        rope[:, start:end] = prompt.rope.T
        rope[:, end : start + length] += prompt.rope_shift
    return rope


def feature_places(
    rows: Sequence[ShownTokens], packed: Sequence[Indices], num_tokens: int
) -> tuple[Indices, tuple[Picture, ...]]:
    """The different pictures of some rows; and for each token of a pack one more than the number of its embedding among
    the features of these pictures, one after another, and 0 for a text token. int64 [num_tokens].

    packed: where the places of each row are in the pack; the last of them may be missing."""
    first_feature: dict[bytes, int] = {}
    different: list[Picture] = []
    features, num_features = np.zeros(num_tokens, np.int64), 0
    for row, at in zip(rows, packed, strict=True):
        numbers: list[Indices] = [np.empty(0, np.int64)]
        for picture in row.pictures:
            if picture.digest not in first_feature:
                first_feature[picture.digest] = num_features
                num_features += picture.num_features
                different.append(picture)
            numbers.append(first_feature[picture.digest] + np.arange(picture.num_features))
        features[at] = np.concatenate(numbers)[: len(at)] + 1
    return features, tuple(different)


@dataclass(frozen=True, slots=True)
class RowParts:
    """Where packed rows have their prompts, which some may share, and their responses. All int64 [rows]."""

    prompt_starts: Indices
    prompt_lengths: Indices
    response_starts: Indices
    response_lengths: Indices
    """Without the last token of each, which is not computed."""

    def packed(self, row: int, places: Indices) -> Indices:
        """Where ascending places in a row are in the pack; those that are not computed, at the end, are left out."""
        prompt = int(self.prompt_lengths[row])
        computed = places[places < prompt + self.response_lengths[row]]
        result: Indices = computed + np.where(
            computed < prompt, self.prompt_starts[row], self.response_starts[row] - prompt
        )
        return result


def with_rope(places: Indices, shown: Sequence[ShownTokens], of_row: Sequence[int], parts: RowParts) -> Indices:
    """Positions [tokens, 4] from the places [tokens] of packed rows. of_row: which of `shown` each row begins with."""
    positions = np.repeat(places[:, None], 4, axis=1)
    for row, number in enumerate(of_row):
        first = shown[number]
        if not row or of_row[row - 1] != number:
            at = parts.packed(row, np.arange(len(first.rope)))
            positions[at, 1:] = first.rope[: len(at)]
        start = int(parts.response_starts[row])
        behind = start + max(0, len(first.rope) - int(parts.prompt_lengths[row]))
        positions[behind : start + int(parts.response_lengths[row]), 1:] += first.rope_shift
    return positions
