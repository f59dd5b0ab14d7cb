"""What sees what in a pack, by tiles, against the rows themselves."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rljob_worker.batch import Column
from rljob_worker.engines.packing import PackedRows, pack
from rljob_worker.engines.parallel.ring.tiles import Tile, Tokens, tiles


def packed(*groups: tuple[int, list[int]]) -> PackedRows:
    """A pack of groups, each with its own prompt and responses, of the given numbers of tokens."""
    prompts = [[index] * prompt for index, (prompt, responses) in enumerate(groups) for _ in responses]
    responses = [[9] * response for _, lengths in groups for response in lengths]
    return pack(Column.ragged(prompts), Column.ragged(responses))


def test_a_token_is_seen_up_to_the_end_of_the_last_row_that_it_is_in() -> None:
    # the example of the module, whose responses have one token more, which is only a target; and a pad
    tokens = Tokens.of(packed((2, [3, 2])), 6)
    assert tokens.ends.tolist() == [5, 5, 4, 4, 5, 6]
    assert tokens.positions.tolist() == [0, 1, 2, 3, 2, 0]
    # of the response of one token nothing is computed: its row ends with the prompt
    assert Tokens.of(packed((2, [1]), (1, [2])), 4).ends.tolist() == [2, 2, 4, 4]


def test_tiles_in_which_nothing_is_seen_are_left_out() -> None:
    # one row of 8 tokens in tiles of 2: all below the diagonal whole, those on it in part
    tokens = Tokens.of(packed((1, [8])), 8)
    result = list(tiles(tokens, tokens, None, 2))
    assert [(item.queries.start, item.keys.start) for item in result] == [
        (0, 0), (2, 0), (2, 2), (4, 0), (4, 2), (4, 4), (6, 0), (6, 2), (6, 4), (6, 6),
    ]  # fmt: skip
    assert [item.sees_all for item in result] == [item.queries != item.keys for item in result]
    # of 3 tokens, a query's own included: the tile before the diagonal in part, the one before that not at all
    narrow = list(tiles(tokens, tokens, 3, 2))
    assert [(item.queries.start, item.keys.start, item.sees_all) for item in narrow] == [
        (0, 0, False), (2, 0, False), (2, 2, False), (4, 2, False), (4, 4, False), (6, 4, False), (6, 6, False),
    ]  # fmt: skip


def test_of_two_rows_side_by_side_neither_sees_the_other() -> None:
    tokens = Tokens.of(packed((2, [3]), (3, [2])), 8)
    starts = [(tile.queries.start, tile.keys.start) for tile in tiles(tokens, tokens, None, 4)]
    assert starts == [(0, 0), (4, 4)]


LENGTHS = st.lists(st.tuples(st.integers(1, 9), st.lists(st.integers(0, 12), min_size=1, max_size=4)), max_size=4)


@given(LENGTHS, st.integers(1, 4), st.sampled_from([None, 1, 4, 9]), st.integers(1, 6))
def test_tiles_hold_what_rows_attend_over_and_nothing_else(
    groups: list[tuple[int, list[int]]], ranks: int, window: int | None, length: int
) -> None:
    rows = packed(*groups)
    num_tokens = max(1, -(-len(rows.token_ids) // ranks)) * ranks
    everything = Tokens.of(rows, num_tokens)
    expected = attended(rows, num_tokens, window)
    for own in range(ranks):
        for other in range(ranks):
            queries, keys = everything.dealt(own, ranks), everything.dealt(other, ranks)
            seen = np.zeros((len(queries.places), len(keys.places)), bool)
            for tile in tiles(queries, keys, window, length):
                assert not seen[tile.queries, tile.keys].any(), "a tile came twice"
                seen[tile.queries, tile.keys] = visible(queries, keys, tile, window)
            np.testing.assert_array_equal(seen, expected[own::ranks, other::ranks])


def visible(queries: Tokens, keys: Tokens, tile: Tile, window: int | None) -> np.ndarray:
    """bool [queries, keys] of a tile, of which those that say so have all."""
    places, key_places = queries.places[tile.queries, None], keys.places[None, tile.keys]
    result = (key_places <= places) & (places < keys.ends[None, tile.keys])
    if window is not None:
        result &= queries.positions[tile.queries, None] - keys.positions[None, tile.keys] < window
    assert not tile.sees_all or result.all()
    return result


def attended(rows: PackedRows, num_tokens: int, window: int | None) -> np.ndarray:
    """bool [queries, keys]: row by row, each token those of its row up to itself; pads themselves."""
    mask = np.eye(num_tokens, dtype=bool)
    for sequence in np.split(rows.sequences, np.cumsum(rows.sequence_lengths)[:-1]):
        for at, token in enumerate(sequence.tolist()):
            mask[token, sequence[max(0, at + 1 - (window or num_tokens)) : at + 1]] = True
    return mask


def test_ranks_have_as_much_to_compute_whoever_s_keys_they_have() -> None:
    # a row of 4,096 tokens on 4 ranks: 1,024 queries and keys each, of which half the pairs are seen
    everything = Tokens.of(packed((96, [4001])), 4096)
    dealt = [everything.dealt(rank, 4) for rank in range(4)]
    assert {len(list(tiles(queries, keys, None, 64))) for queries in dealt for keys in dealt} == {16 * 17 // 2}
