"""A prompt with pictures, as a model sees it: which of its tokens stand for pictures, and where every token is.

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


@dataclass(frozen=True, slots=True, eq=False)
class ShownPrompt:
    """What one prompt shows."""

    places: Indices
    """[features of all pictures] places in the prompt, ascending."""
    pictures: tuple[Picture, ...]
    """In the order of their tokens."""
    rope: Indices
    """int64 [tokens, 3]: frame, row and column of each token."""

    @property
    def rope_shift(self) -> int:
        """What is added to the place of a token behind the prompt to get its position."""
        return int(self.rope.max()) + 1 - len(self.rope)

    @property
    def identity(self) -> tuple[bytes, ...]:
        """Equal for prompts with the same pictures."""
        return tuple(picture.digest for picture in self.pictures)


@dataclass(frozen=True, slots=True)
class RowPictures:
    """The pictures of some rows, none of which is opened before it is asked for."""

    identities: Indices
    """int64 [rows]: equal numbers have the same pictures."""
    of_row: Callable[[int], ShownPrompt]


def rope_of_sequences(
    places: Indices, shown: Sequence[ShownPrompt], starts: Sequence[int], lengths: Sequence[int]
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
    prompts: Sequence[ShownPrompt], starts: Sequence[int], num_tokens: int
) -> tuple[Indices, tuple[Picture, ...]]:
    """The different pictures of some prompts that begin at `starts` of a pack; and for each of its tokens one more than
    the number of its embedding among the features of these pictures, one after another, and 0 for a text token.
    int64 [num_tokens]."""
    first_feature: dict[bytes, int] = {}
    different: list[Picture] = []
    features, num_features = np.zeros(num_tokens, np.int64), 0
    for prompt, start in zip(prompts, starts, strict=True):
        numbers: list[Indices] = [np.empty(0, np.int64)]
        for picture in prompt.pictures:
            if picture.digest not in first_feature:
                first_feature[picture.digest] = num_features
                num_features += picture.num_features
                different.append(picture)
            numbers.append(first_feature[picture.digest] + np.arange(picture.num_features))
        features[start + prompt.places] = np.concatenate(numbers) + 1
    return features, tuple(different)
