"""Rows to micro-batches and packed tokens, against numbers worked out by hand and a row-by-row reading."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.memory.sizes import ATTENDED
from rljob_worker.batch import Column
from rljob_worker.engines.packing import micro_batches, pack, ranges, shared_prompts


def test_micro_batches_fill_up_to_the_budget_in_row_order() -> None:
    # budget 10: 4 + 6 fit; 5 opens the next; 20 is longer than the budget and goes alone
    runs = micro_batches(np.array([4, 6, 5, 20, 1, 2]), 10)
    assert [run.tolist() for run in runs] == [[0, 1], [2], [3], [4, 5]]


def test_a_prompt_that_rows_share_counts_once_in_a_micro_batch() -> None:
    shared = shared_prompts(Column.ragged([[5, 6, 7], [5, 6, 7], [5, 6, 7], [5, 6, 8], [5]]))
    assert shared.tolist() == [0, 3, 3, 0, 0]
    # rows of 5 tokens, 3 of them the prompt's, and a budget of 9: 5 + 2 + 2, then 5 without the prompt before, 5 + 2
    assert [run.tolist() for run in micro_batches(np.full(5, 5), 9, np.array([0, 3, 3, 0, 3]))] == [[0, 1, 2], [3, 4]]
    # what they attend over is at most twice the budget: three rows of 6 in 18, though four would be 6 + 3 x 1 tokens
    assert [len(run) for run in micro_batches(np.full(4, 6), 9, np.array([0, 5, 5, 5]))] == [3, 1]


def test_no_rows_make_no_micro_batches() -> None:
    assert micro_batches(np.empty(0, np.int64), 10) == []
    assert micro_batches(np.empty(0, np.int64), 10, together=np.empty(0, np.int64)) == []


def test_rows_that_belong_together_are_in_one_micro_batch() -> None:
    # budget 10: 4 | 4 + 4 together do not fit behind 4; 6 + 7 together are longer than the budget; 3 + 2 fit
    together = np.array([0, 1, 1, 5, 5, 6, 8])
    runs = micro_batches(np.array([4, 4, 4, 6, 7, 3, 2]), 10, together=together)
    assert [run.tolist() for run in runs] == [[0], [1, 2], [3, 4], [5, 6]]
    # three rows of 5 tokens with one prompt of 3 take 5 + 2 + 2 alone, and 2 + 2 + 2 behind a row that has it
    shared, together = np.array([0, 3, 3, 3]), np.array([0, 1, 1, 1])
    assert [len(run) for run in micro_batches(np.full(4, 5), 11, shared, together)] == [4]
    assert [len(run) for run in micro_batches(np.full(4, 5), 10, shared, together)] == [1, 3]
    # of 11 tokens four rows of 6 would be 6 + 3 x 1, but they attend over 24, more than twice the budget
    assert [len(run) for run in micro_batches(np.full(4, 6), 11, np.array([0, 5, 5, 5]), together)] == [1, 3]


@given(st.lists(st.integers(1, 9), max_size=20), st.integers(1, 20))
def test_rows_that_are_alone_are_cut_as_if_nothing_belonged_together(lengths: list[int], budget: int) -> None:
    tokens = np.array(lengths, np.int64)
    alone = micro_batches(tokens, budget, together=np.arange(len(tokens)) * 3)
    assert [run.tolist() for run in alone] == [run.tolist() for run in micro_batches(tokens, budget)]


def test_pack_computes_a_shared_prompt_once() -> None:
    # the example of the module: prompt [5 6], responses [7 8 9] and [4]
    rows = pack(Column.ragged([[5, 6], [5, 6]]), Column.ragged([[7, 8, 9], [4]]))
    assert rows.token_ids.tolist() == [5, 6, 7, 8]
    assert rows.positions.tolist() == [0, 1, 2, 3]
    assert rows.sequences.tolist() == [0, 1, 2, 3, 0, 1]
    assert rows.sequence_lengths.tolist() == [4, 2]
    assert rows.predicts.tolist() == [1, 2, 3, 1]
    assert rows.targets.tolist() == [7, 8, 9, 4]
    assert rows.row.tolist() == [0, 0, 0, 1]


def test_routes_are_packed_with_their_tokens() -> None:
    # the same: of the prompt 50 60; of the positions that 7 8 9 and 4 were drawn from 60 70 80 and 61: those of a
    # prompt's last token give way to the prompt's own
    prompts, responses = Column.ragged([[5, 6], [5, 6]]), Column.ragged([[7, 8, 9], [4]])

    def routes(*rows: list[int]) -> Column:
        return Column.ragged([np.array(row).reshape(-1, 1, 1) for row in rows], tail=(1, 1))

    rows = pack(prompts, responses, (routes([50, 60], [50, 60]), routes([60, 70, 80], [61])))
    assert rows.routes is not None and rows.routes[:, 0, 0].tolist() == [50, 60, 70, 80]
    assert pack(prompts, responses).routes is None


def test_a_row_without_response_takes_no_room() -> None:
    rows = pack(Column.ragged([[5], [6]]), Column.ragged([[], [7]]))
    assert rows.token_ids.tolist() == [6]
    assert rows.row.tolist() == [1]
    assert rows.num_rows == 2


def test_ranges() -> None:
    assert ranges(np.array([5, 0]), np.array([2, 3])).tolist() == [5, 6, 0, 1, 2]


ROWS = st.lists(
    st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=4), st.lists(st.integers(0, 9), max_size=5)),
    max_size=8,
)


@given(ROWS)
def test_every_row_can_be_read_back_from_the_pack(rows: list[tuple[list[int], list[int]]]) -> None:
    packed = pack(Column.ragged([prompt for prompt, _ in rows]), Column.ragged([response for _, response in rows]))
    starts = np.cumsum(packed.sequence_lengths) - packed.sequence_lengths
    answered = [row for row, (_, response) in enumerate(rows) if response]
    assert len(packed.sequence_lengths) == len(answered)
    for row, start, length in zip(answered, starts, packed.sequence_lengths, strict=True):
        prompt, response = rows[row]
        sequence = packed.sequences[start : start + length]
        assert packed.token_ids[sequence].tolist() == (prompt + response)[:-1]
        assert packed.positions[sequence].tolist() == list(range(length))
        mine = packed.row == row
        assert packed.targets[mine].tolist() == response
        assert packed.predicts[mine].tolist() == sequence[len(prompt) - 1 :].tolist()


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 30)), max_size=20), st.integers(1, 40))
def test_micro_batches_partition_the_rows(rows: list[tuple[int, int]], budget: int) -> None:
    prompts, responses = Column.ragged([[1] * p + [2] for p, _ in rows]), Column.ragged([[3] * r for _, r in rows])
    lengths = prompts.lengths + responses.lengths
    runs = micro_batches(lengths, budget, shared_prompts(prompts))
    assert [row for run in runs for row in run.tolist()] == list(range(len(rows)))
    for run in runs:
        packed = pack(prompts.take(run), responses.take(run))
        # the last token of a response is not an input
        assert len(run) == 1 or len(packed.token_ids) + len(run) <= budget
        assert len(run) == 1 or lengths[run].sum() <= ATTENDED * budget
