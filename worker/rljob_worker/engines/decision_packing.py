"""Rows of policies that compute all tokens of a decision in one forward pass, packed.

Two rows of prompts `[p0 p1]` and `[q0]`, with decisions `[a b]` and `[c d]`; `_` is the placeholder of an action token:

    token_ids   p0 p1 _  _  | q0 _  _       what was drawn is never an input, so nothing is shared between rows
    positions   0  1  2  3  | 0  1  2
    both_ways   2           | 1             from here on a token sees all of its row; those before see what is earlier
    predicts    1 2         | 4 5           as in `packing`: a token is predicted by the position before it
    targets     a b         | c d

A policy that reads nothing but the state has action tokens alone: `_ _ | _ _`, each predicted at its own position.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rljob_worker.batch import Column
from rljob_worker.batch.gather import offsets_of
from rljob_worker.engines.packing import PackedRows, ranges
from rljob_worker.engines.prompt_pictures import Picture, RowPictures, feature_places
from rljob_worker.errors import BadData


@dataclass(frozen=True, slots=True)
class OneForward:
    """How a model computes all tokens of a decision in one forward pass: each token has a distribution of its own,
    which does not depend on what the others are."""

    num_tokens: int
    """Action tokens of a decision."""
    placeholder: int = 0
    """The input in the place of each action token."""
    suffix: tuple[int, ...] = ()
    """Tokens behind the action tokens."""
    reads_prompt: bool = True
    """Whether the pack has prompts; else it has action tokens alone, and `suffix` is empty."""
    sees_all: bool = False
    """Whether tokens of the prompt see later ones, too."""


def pack_decisions(
    prompts: Column,
    responses: Column,
    decision: OneForward,
    pictures: RowPictures | None = None,
    states: Column | None = None,
) -> PackedRows:
    """Pack rows in order; rows without a response take no room.

    prompts, responses: ragged int64 [rows]. pictures: what the prompts show. states: ragged float32 [rows], of models
    that read some. Raises BadData for a response that is not a whole decision.
    """
    lengths = responses.lengths
    answered = np.flatnonzero(lengths > 0)
    if (wrong := lengths[answered] != decision.num_tokens).any():
        raise BadData(
            f"a response has {lengths[answered][wrong.argmax()]} tokens, and a decision of the model has "
            f"{decision.num_tokens}; a stage that changes responses must leave decisions whole"
        )
    own = prompts.take(answered)
    own_lengths = own.lengths if decision.reads_prompt else np.zeros(len(answered), np.int64)
    sequence_lengths = own_lengths + decision.num_tokens + len(decision.suffix)
    starts = offsets_of(sequence_lengths)[:-1]
    num_tokens = int(sequence_lengths.sum())
    token_ids = np.full(num_tokens, decision.placeholder, np.int64)
    if decision.reads_prompt:
        token_ids[ranges(starts, own_lengths)] = own.values
    ends = starts + own_lengths + decision.num_tokens
    for place, token in enumerate(decision.suffix):
        token_ids[ends + place] = token
    first = starts + own_lengths - decision.reads_prompt
    features, different = None, tuple[Picture, ...]()
    if pictures is not None:
        shown = [pictures.of_row(row) for row in answered.tolist()]
        places = [start + item.places for start, item in zip(starts.tolist(), shown, strict=True)]
        features, different = feature_places(shown, places, num_tokens)
    return PackedRows(
        token_ids=token_ids,
        positions=ranges(np.zeros_like(sequence_lengths), sequence_lengths),
        sequences=np.arange(num_tokens),
        sequence_lengths=sequence_lengths,
        predicts=ranges(first, np.full(len(answered), decision.num_tokens)),
        targets=responses.values.astype(np.int64, copy=False),
        row=np.repeat(np.arange(len(lengths)), lengths),
        num_rows=len(lengths),
        features=features if different else None,
        pictures=different,
        both_ways=np.zeros_like(own_lengths) if decision.sees_all else own_lengths,
        action_places=ranges(starts + own_lengths, np.full(len(answered), decision.num_tokens)),
        states=None if states is None else states_of(states.take(answered)),
    )


def states_of(states: Column) -> NDArray[np.float32]:
    """[rows, numbers], from ragged float32 [rows]. Raises BadData for rows with more numbers than others."""
    lengths = states.lengths
    if len(lengths) and (lengths != lengths[0]).any():
        raise BadData(f"states have {int(lengths.min())} to {int(lengths.max())} numbers, and all of a model as many")
    return states.values.reshape(len(lengths), -1)
