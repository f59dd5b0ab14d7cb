"""Which rows are computed together, and where each of their tokens sits once they are packed.

Two rows of one prompt `[p0 p1]`, with responses `[a b c]` and `[d]`:

    token_ids   p0 p1 a  b  |                 the prompt is computed once; the last token of a response predicts nothing
    positions   0  1  2  3                    and nothing attends to it, so it is not computed at all: `c` and `d` are
                                              only targets
    sequences   row 0: 0 1 2 3    row 1: 0 1  positions in the pack that each row attends over, in order
    predicts    1 2 3 | 1                     where the logits of each response token come from: a token is predicted by
    targets     a b c | d                     the position before it, the first one by the prompt's last position
    row         0 0 0 | 1

Prompts with pictures (see `prompt_pictures`) are one prompt where their pictures are the same, too; each token then has
a position of four numbers, (place in its row, frame, row, column), and responses go on behind the largest of their
prompt. What the world writes into a response may show pictures, too: those are of the row alone.

With routes (see `router`) P0 P1 of the prompt's tokens, Ra Rb Rc | Rd of the positions that responses were drawn from:

    routes      P0 P1 Rb Rc                   Ra and Rd are of p1, for which the prompt has one
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rljob_api.memory.sizes import ATTENDED
from rljob_worker.batch import Column, Indices
from rljob_worker.batch.gather import offsets_of
from rljob_worker.engines.prompt_pictures import Picture, RowParts, RowPictures, feature_places, with_rope


@dataclass(frozen=True, slots=True)
class PackedRows:
    """Rows without padding, as the model sees them. All arrays are int64."""

    token_ids: Indices
    """[tokens]"""
    positions: Indices
    """[tokens] position of each token in its row; [tokens, 4] where rows may have pictures."""
    sequences: Indices
    """[sum of sequence_lengths] packed positions each row attends over; rows may share those of a prompt."""
    sequence_lengths: Indices
    """[sequences] tokens each row attends over; rows without a response have no sequence."""
    predicts: Indices
    """[responses] packed position whose logits predict each response token."""
    targets: Indices
    """[responses] the response tokens."""
    row: Indices
    """[responses] ascending: the row of each response token."""
    num_rows: int
    routes: np.ndarray | None = None
    """[tokens, layers, k] experts of each token, where they are given."""
    features: Indices | None = None
    """[tokens] one more than the number of the picture feature that is a token's embedding; 0 for a text token. None
    where no row has a picture."""
    pictures: tuple[Picture, ...] = ()
    """Those that are shown, once each, in the order of their features."""
    both_ways: Indices | None = None
    """[sequences] the place in each row from which on its tokens see all of it; None: all rows are causal."""
    action_places: Indices | None = None
    """[action tokens] packed position of each, where they are inputs as placeholders; see `decision_packing`."""
    states: NDArray[np.float32] | None = None
    """[sequences, numbers] what simulators measured, of models that read it."""

    @property
    def places(self) -> Indices:
        """[tokens] of each token in its row."""
        return self.positions if self.positions.ndim == 1 else self.positions[:, 0]


@dataclass(frozen=True, slots=True)
class PatchBudget:
    """Patches of pictures that a micro-batch has room for, besides its tokens."""

    patches: Indices
    """[rows] of the pictures of each row."""
    most: int
    own: Indices | None = None
    """[rows] patches behind each row's prompt, which no other row shares. None: none."""


def micro_batches(
    num_tokens: Indices,
    budget: int,
    shared: Indices | None = None,
    together: Indices | None = None,
    pictures: PatchBudget | None = None,
) -> list[Indices]:
    """Consecutive runs of rows of at most `budget` tokens each; a longer row is a run of its own. No rows, no runs.

    shared: of each row's tokens, those that a run has already where the row before is in it (`shared_prompts`). They
    are computed once but attended over by each row, which takes memory as well: a run's rows have at most ATTENDED
    budgets together. together: int64 [rows], ascending: rows of one number are in one run, however long it gets.
    pictures: another budget, of patches, of which a shared prompt needs none either.
    """
    assert budget > 0, "a micro-batch needs room for at least one token"
    shared = np.zeros_like(num_tokens) if shared is None else shared
    firsts = np.arange(len(num_tokens)) if together is None else np.flatnonzero(np.diff(together, prepend=-1))
    shown = _patches_of_runs(pictures, shared, firsts)
    most_patches = 0 if pictures is None else pictures.most
    cuts: list[int] = []
    filled = attended = opened = 0
    for first, tokens, known, seen, patches, known_patches in zip(
        firsts.tolist(), *_of_runs(num_tokens, shared, firsts), *shown, strict=True
    ):
        is_full = filled + tokens - known > budget or attended + seen > ATTENDED * budget
        shows_too_much = patches > known_patches and opened + patches - known_patches > most_patches
        if not cuts or is_full or shows_too_much:
            cuts.append(first)
            filled, attended, known, opened, known_patches = 0, 0, 0, 0, 0
        filled += tokens - known
        attended += seen
        opened += patches - known_patches
    return np.split(np.arange(len(num_tokens)), cuts[1:]) if cuts else []


def _of_runs(num_tokens: Indices, shared: Indices, firsts: Indices) -> tuple[list[int], list[int], list[int]]:
    """For the rows from each of `firsts` to the next: tokens to compute at the beginning of a micro-batch, how many
    less behind the row before, and tokens that are attended over."""
    known = shared[firsts]
    if len(firsts) == len(num_tokens):
        return num_tokens.tolist(), known.tolist(), num_tokens.tolist()
    seen = np.add.reduceat(num_tokens, firsts)
    return (seen - np.add.reduceat(shared, firsts) + known).tolist(), known.tolist(), seen.tolist()


def _patches_of_runs(
    pictures: PatchBudget | None, shared: Indices, firsts: Indices
) -> tuple[Sequence[int], Sequence[int]]:
    """For the rows from each of `firsts` to the next: patches to compute at the beginning of a micro-batch, and how
    many less behind the row before."""
    if pictures is None:
        zeros = [0] * len(firsts)
        return zeros, zeros
    known = np.where(shared[firsts] > 0, pictures.patches[firsts], 0)
    own = np.where(shared > 0, 0, pictures.patches) + (0 if pictures.own is None else pictures.own)
    return (np.add.reduceat(own, firsts) + known if len(firsts) else known).tolist(), known.tolist()


def shared_prompts(prompt_ids: Column, pictures: Indices | None = None) -> Indices:
    """Tokens of each row's prompt, where the row before has the same; else 0. pictures: int64 [rows], numbers that are
    equal where pictures are."""
    return np.where(_starts_new_prompt(prompt_ids, pictures), 0, prompt_ids.lengths)


def pack(
    prompt_ids: Column,
    response_ids: Column,
    routes: tuple[Column, Column] | None = None,
    pictures: RowPictures | None = None,
) -> PackedRows:
    """Pack rows in order. Neighbouring rows with equal prompts share its tokens; rows without response take no room.

    routes: of each prompt's tokens, and of the position before each response token; as long as their rows. pictures:
    what the prompts show, where they may show something.
    """
    assert prompt_ids.offsets is not None and response_ids.offsets is not None, "token columns are ragged"
    assert prompt_ids.num_rows == response_ids.num_rows, "prompts and responses of different rows"
    answered = np.flatnonzero(response_ids.lengths > 0)
    prompts, response_lengths = prompt_ids.take(answered), response_ids.lengths[answered]
    assert (prompts.lengths > 0).all(), "every prompt has at least one token"
    first = _starts_new_prompt(prompts, None if pictures is None else pictures.identities[answered])
    parts = _parts_of(prompts.lengths, response_lengths - 1, first)
    sequences, sequence_lengths = _sequences_of(parts)

    # all response tokens but each row's last
    inputs = ranges(response_ids.offsets[:-1][answered], parts.response_lengths)
    token_ids = _laid_out(parts, prompts.values, response_ids.values[inputs]).astype(np.int64, copy=False)
    positions = np.empty_like(token_ids)
    positions[sequences] = ranges(np.zeros_like(sequence_lengths), sequence_lengths)
    features, different = None, tuple[Picture, ...]()
    if pictures is not None:
        positions, features, different = _with_pictures(positions, pictures, answered, first, parts)
    packed_routes = None
    if routes is not None:
        packed_routes = _laid_out(parts, routes[0].take(answered).values, routes[1].values[inputs + 1])
    last_of_prompts = offsets_of(sequence_lengths)[:-1] + parts.prompt_lengths - 1
    return PackedRows(
        token_ids=token_ids,
        positions=positions,
        sequences=sequences,
        sequence_lengths=sequence_lengths,
        predicts=sequences[ranges(last_of_prompts, response_lengths)],
        targets=response_ids.values.astype(np.int64, copy=False),
        row=np.repeat(np.arange(response_ids.num_rows), response_ids.lengths),
        num_rows=response_ids.num_rows,
        routes=packed_routes,
        features=features if different else None,
        pictures=different,
    )


def _parts_of(prompt_lengths: Indices, response_lengths: Indices, first: NDArray[np.bool_]) -> RowParts:
    """Where rows are that follow each other, with a prompt before each that is the `first` with it."""
    own_prompt = np.where(first, prompt_lengths, 0)
    response_starts = np.cumsum(own_prompt + response_lengths) - response_lengths
    owner = np.cumsum(first) - 1  # which of the distinct prompts each row uses
    prompt_starts = (response_starts - own_prompt)[first][owner]
    return RowParts(prompt_starts, prompt_lengths, response_starts, response_lengths)


def _sequences_of(parts: RowParts) -> tuple[Indices, Indices]:
    """What each row attends over, prompt 0, response 0, prompt 1, response 1 ..., and how many tokens that are."""
    starts = _interleave(parts.prompt_starts, parts.response_starts)
    lengths = _interleave(parts.prompt_lengths, parts.response_lengths)
    return ranges(starts, lengths), parts.prompt_lengths + parts.response_lengths


def _laid_out(parts: RowParts, of_prompts: np.ndarray, of_responses: np.ndarray) -> np.ndarray:
    """[tokens, ...] what the tokens of each row's prompt and response have, in their places."""
    num_tokens = int(parts.response_starts[-1] + parts.response_lengths[-1]) if len(parts.response_starts) else 0
    result = np.empty((num_tokens, *of_responses.shape[1:]), of_responses.dtype)
    result[ranges(parts.prompt_starts, parts.prompt_lengths)] = of_prompts
    result[ranges(parts.response_starts, parts.response_lengths)] = of_responses
    return result


def _with_pictures(
    positions: Indices, pictures: RowPictures, answered: Indices, first: NDArray[np.bool_], parts: RowParts
) -> tuple[Indices, Indices, tuple[Picture, ...]]:
    """Positions with those of rope, places of features, and the different pictures of packed rows. answered: rows that
    are packed. first: which of these begin a prompt."""
    opened = np.arange(len(answered)) if pictures.in_responses else np.flatnonzero(first)
    shown = [pictures.of_row(row) for row in answered[opened].tolist()]
    of_row = opened.searchsorted(np.arange(len(answered)), side="right") - 1
    packed = [parts.packed(row, item.places) for row, item in zip(opened.tolist(), shown, strict=True)]
    features, different = feature_places(shown, packed, len(positions))
    return with_rope(positions, shown, of_row.tolist(), parts), features, different


def placeholder(target: int = 0) -> PackedRows:
    """One token that predicts nothing anyone asked for: lets a rank without rows run every collective of a forward.
    target: a token that the model may draw."""
    zero = np.zeros(1, np.int64)
    return PackedRows(zero, zero, zero, np.ones(1, np.int64), zero, zero + target, zero, 0)


def ranges(starts: Indices, lengths: Indices) -> Indices:
    """Concatenation of `arange(start, start + length)`: ranges([5, 0], [2, 3]) = [5 6 0 1 2]."""
    offsets = offsets_of(lengths)
    return np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])


def _starts_new_prompt(prompts: Column, pictures: Indices | None = None) -> np.ndarray:
    """bool [rows]: the row's prompt differs from that of the row before, in its tokens or its pictures."""
    assert prompts.offsets is not None
    first = np.ones(prompts.num_rows, bool)
    lengths, offsets, values = prompts.lengths, prompts.offsets.tolist(), prompts.values
    for row in np.flatnonzero(lengths[1:] == lengths[:-1]).tolist():
        a, b, c = offsets[row : row + 3]
        first[row + 1] = not np.array_equal(values[a:b], values[b:c])
    if pictures is not None:
        first[1:] |= np.diff(pictures) != 0
    return first


def _interleave(left: Indices, right: Indices) -> Indices:
    return np.stack([left, right], axis=1).reshape(-1)
