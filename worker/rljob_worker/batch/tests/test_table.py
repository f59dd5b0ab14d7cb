"""Batches of ragged rows: split, gather, concatenate and join."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_worker.batch import Batch, Column
from rljob_worker.batch.row_index import RowIndex
from rljob_worker.tests.indexed import Indexed


def make_batch(row_ids, responses, group_size=2):
    ids = np.asarray(row_ids, np.int64)
    columns = {
        "response_ids": Column.ragged(responses),
        "rewards": Column.fixed([float(i) for i in row_ids]),
        "answer": Column.strings([f"ä{i}" for i in row_ids]),
    }
    return Batch.build(ids, ids // group_size, columns, [len(r) for r in responses])


def test_ragged_rows_come_back_as_they_went_in():
    batch = make_batch([16, 17], [[11, 12], [13]])
    assert [row.tolist() for row in batch["response_ids"].to_list()] == [[11, 12], [13]]
    assert batch["response_ids"].offsets.tolist() == [0, 2, 3]
    assert batch["answer"].to_list() == ["ä16", "ä17"]


@given(st.lists(st.lists(st.integers(0, 99), max_size=5), min_size=1, max_size=12), st.randoms())
def test_any_split_concatenates_back_in_row_order(responses, random):
    whole = make_batch(list(range(len(responses))), responses)
    owner = [random.randrange(3) for _ in responses]
    parts = [whole.take([i for i, o in enumerate(owner) if o == part]) for part in (2, 0, 1)]
    back = Batch.concat(parts)
    assert back.row_ids.tolist() == whole.row_ids.tolist()
    assert [r.tolist() for r in back["response_ids"].to_list()] == responses
    assert back["answer"].to_list() == whole["answer"].to_list()
    assert back.num_tokens.tolist() == [len(r) for r in responses]


def long_rows(row_ids):
    """A column by row and one by group, whose values tell when they are fetched one by one."""
    ids = np.asarray(row_ids)
    by_row = Column.from_lengths(np.repeat(ids, 100), [100] * len(ids))
    groups, heads = np.unique(ids // 2, return_index=True)
    by_group = Column.from_lengths(np.repeat(groups, 200), [200] * len(groups)).per_group_at(heads, len(ids))
    columns = {"pixels": by_row, "prompt": by_group}
    watched = {name: replace(column, values=column.values.view(Indexed)) for name, column in columns.items()}
    return Batch.build(ids, ids // 2, watched)


@pytest.mark.parametrize(
    "gathered",
    [
        lambda: long_rows(range(8))["pixels"].take(np.array([6, 0, 3])),
        lambda: long_rows(range(8)).take(np.array([0, 3, 6])),
        lambda: Column.concat([long_rows(range(4))["pixels"], long_rows(range(4, 8))["pixels"]]),
        lambda: Batch.concat([long_rows([0, 2, 5, 7]), long_rows([1, 3, 4, 6])]),
    ],
)
def test_long_rows_are_gathered_as_slices_everywhere(gathered):
    """There is one gather: no part of a batch indexes values by itself."""
    Indexed.fetched = 0
    gathered()
    assert Indexed.fetched == 0


def test_a_row_that_comes_twice_is_refused():
    batch = make_batch([1, 2], [[1], [2]])
    with pytest.raises(AssertionError, match="none twice"):
        Batch.concat([batch, batch])


def test_join_needs_the_same_rows_and_keeps_the_known_token_counts():
    left = make_batch([1, 2], [[1], [2, 3]])
    right = Batch.build([1, 2], [0, 1], {"values": Column.fixed([0.5, 0.25])})
    joined = Batch.join([right, left])
    assert joined.num_tokens.tolist() == [1, 2]
    assert set(joined.columns) == {"values", "response_ids", "rewards", "answer"}
    with pytest.raises(AssertionError, match="different rows"):
        Batch.join([left, make_batch([1, 3], [[1], [2]])])


def test_a_missing_column_names_those_there_are():
    with pytest.raises(KeyError, match="no column 'value'; this batch has .*'rewards'"):
        make_batch([1], [[1]])["value"]


def test_an_empty_batch_is_a_batch():
    empty = make_batch([], [])
    assert len(Batch.concat([empty, make_batch([4], [[1]])])) == 1
    assert len(empty.take([])) == 0


def test_columns_of_several_kinds_are_not_one():
    with pytest.raises(AssertionError, match="several kinds"):
        Column.concat([Column.fixed([1, 2]), Column.fixed([1.0])])
    with pytest.raises(AssertionError, match="several kinds"):
        Column.concat([Column.fixed([1, 2]), Column.ragged([[1]])])
    with pytest.raises(AssertionError, match="several kinds"):
        Column.concat([Column.ragged([[1]]), Column.ragged([[1]]).per_group_at(np.array([0]), 1)])


def test_columns_follow_each_other():
    assert Column.concat([Column.fixed([1, 2]), Column.fixed([3])]).to_list() == [1, 2, 3]
    assert Column.concat([Column.strings(["a", ""]), Column.strings(["b"])]).to_list() == ["a", "", "b"]


def test_bytes_come_back_as_bytes():
    assert Column.binary([b"\x00\xff", b""]).to_list() == [b"\x00\xff", b""]
    assert len(Column.binary([]).to_list()) == 0


def test_runs_of_vectors_keep_their_shape_even_without_any():
    patches = Column.ragged([np.ones((2, 3)), [], np.zeros((1, 3))], "float32", tail=(3,))
    assert patches.values.shape == (3, 3) and patches.offsets.tolist() == [0, 2, 2, 3]
    assert Column.ragged([], "float32", tail=(3,)).values.shape == (0, 3)
    with pytest.raises(AssertionError, match=r"not of shape \(3,\)"):
        Column.ragged([np.ones((2, 4))], "float32", tail=(3,))


def test_numbers_that_numpy_lacks_are_kept_as_their_bits():
    assert Column.ragged([[0x3F80]], "bfloat16").values.dtype == np.uint16
    assert Column.ragged([[0x38]], "float8_e4m3fn").values.dtype == np.uint8
    assert Column.ragged([[1.5]], "float32").values.dtype == np.float32


def grouped(row_ids, prompts):
    """Groups of three numbers with a prompt for each group, and its row's number in every row."""
    index = RowIndex(*(np.array(ids, np.int64) for ids in (row_ids, [r // 3 for r in row_ids], row_ids)))
    column = Column.ragged(prompts).per_group_at(np.unique(index.heads()), len(index))
    return Batch.of(index, {"prompt_ids": column, "number": Column.ragged([[r] for r in row_ids])})


def listed(batch, name="prompt_ids"):
    return [row.tolist() for row in batch[name].to_list()]


def test_what_is_stored_per_group_is_read_per_row():
    batch = grouped([0, 2, 3, 4, 5], [[7, 8], [9]])
    assert batch.columns["prompt_ids"].values.tolist() == [7, 8, 9]
    assert batch.columns["prompt_ids"].lengths.tolist() == [2, 0, 1, 0, 0]
    assert listed(batch) == [[7, 8], [7, 8], [9], [9], [9]]
    assert not batch["prompt_ids"].per_group
    assert batch.lengths("prompt_ids").tolist() == [2, 2, 1, 1, 1]
    assert batch.lengths("number").tolist() == [1] * 5
    assert [row.tolist() for row in batch.column_of("prompt_ids", np.array([4, 1])).to_list()] == [[9], [7, 8]]
    assert [row.tolist() for row in batch.column_of("number", np.array([4, 1])).to_list()] == [[5], [2]]
    with pytest.raises(AssertionError, match="through its batch"):
        batch.columns["prompt_ids"].take(np.array([1]))


def test_rows_of_a_group_share_one_value():
    values = grouped([0, 1, 4], [[7], [8]]).values_of("prompt_ids")
    assert [value.tolist() for value in values] == [[7], [7], [8]]
    assert values[0] is values[1]
    assert [value.tolist() for value in grouped([0, 1], [[7]]).values_of("number")] == [[0], [1]]


def test_the_first_row_that_is_taken_takes_the_group_along():
    taken = grouped([0, 1, 2, 3, 5], [[7, 8], [9]]).take([1, 2, 4])
    assert taken.columns["prompt_ids"].lengths.tolist() == [2, 0, 1]
    assert listed(taken) == [[7, 8], [7, 8], [9]]


def test_groups_that_meet_again_are_kept_once():
    one, two = grouped([1, 3], [[7, 8], [9]]), grouped([0, 2, 5], [[7, 8], [9]])
    for parts in ([one, two], [two, one]):
        whole = Batch.concat(parts)
        assert whole.columns["prompt_ids"].values.tolist() == [7, 8, 9]
        assert whole.columns["prompt_ids"].lengths.tolist() == [2, 0, 0, 1, 0]
        assert listed(whole, "number") == [[0], [1], [2], [3], [5]]


@given(st.sets(st.integers(0, 30)), st.lists(st.integers(1, 3), min_size=31, max_size=31), st.data())
def test_any_selection_of_any_parts_reads_as_if_every_row_had_its_own(row_ids, lengths, data):
    rows = sorted(row_ids)
    prompt = {group: list(range(group, group + lengths[group])) for group in {row // 3 for row in rows}}
    part_of = {row: data.draw(st.integers(0, 2)) for row in rows}
    held = [[row for row in rows if part_of[row] == part] for part in range(3)]
    parts = [grouped(ids, [prompt[group] for group in sorted({row // 3 for row in ids})]) for ids in held]
    whole = Batch.concat(parts)
    assert listed(whole) == [prompt[row // 3] for row in rows]
    chosen = sorted(data.draw(st.sets(st.integers(0, len(rows) - 1))) if rows else [])
    assert listed(whole.take(chosen)) == [prompt[rows[i] // 3] for i in chosen]
    assert whole.columns["prompt_ids"].values.size == sum(map(len, prompt.values()))


def test_only_runs_can_be_stored_per_group():
    with pytest.raises(AssertionError, match="column x: only ragged columns are per group"):
        Batch.build([1], [0], {"x": Column(np.zeros(1), None, "float64", per_group=True)})
    with pytest.raises(AssertionError, match="only ragged columns are per group"):
        Column.fixed([1]).per_group_at(np.array([0]), 2)


def test_selecting_and_renaming_leave_a_group_as_it_is_stored():
    batch = grouped([0, 1], [[7]])
    assert batch.select(["prompt_ids"]).columns["prompt_ids"].per_group
    assert batch.rename({"prompt_ids": "question"}).columns["question"].per_group
    assert batch.has_groups and not batch.select(["number"]).has_groups
    with pytest.raises(KeyError, match="no column 'x'"):
        batch.select(["x"])


def test_rows_in_no_order_of_their_groups_are_read_right_too():
    index = RowIndex(np.array([1, 2, 3, 4]), np.array([5, 2, 5, 2]), np.zeros(4, np.int64))
    batch = Batch.of(index, {"p": Column.ragged([[1], [2, 2]]).per_group_at(np.array([0, 1]), 4)})
    assert listed(batch, "p") == [[1], [2, 2], [1], [2, 2]]
    assert listed(batch.take([2, 3]), "p") == [[1], [2, 2]]
    assert [row.tolist() for row in batch.column_of("p", np.array([3])).to_list()] == [[2, 2]]


def test_the_index_of_a_batch_is_its_three_numbers():
    index = make_batch([4, 7], [[1], [2, 3]]).index
    assert (index.row_ids.tolist(), index.group_ids.tolist(), index.num_tokens.tolist()) == ([4, 7], [2, 3], [1, 2])


def test_a_join_keeps_ids_and_knows_its_columns():
    joined = Batch.join([make_batch([4, 7], [[1], [2]]), Batch.build([4, 7], [2, 3], {"x": Column.fixed([1.0, 2.0])})])
    assert (joined.row_ids.tolist(), joined.group_ids.tolist()) == ([4, 7], [2, 3])
    assert "x" in joined and "y" not in joined


def test_bytes_of_a_batch_are_those_of_its_index_and_columns():
    assert Batch.build([1, 2], [0, 1], {"x": Column.fixed([1.0, 2.0], "float64")}).nbytes == 3 * 16 + 16


def test_two_rows_are_in_order_too_and_lengths_add_up():
    with pytest.raises(AssertionError, match="ascend"):
        Batch.build([2, 1], [0, 0], {})
    with pytest.raises(AssertionError, match="add up"):
        Column.from_lengths([1, 2, 3], [1, 1])


def test_rows_are_alike_when_each_is_as_long_as_the_others_and_stored_likewise():
    three = Column.ragged([[1], [2, 3], []])
    assert three.has_rows_like(three) and three.has_rows_like(Column.ragged([[0.5], [0.0, 1.0], []], "float32"))
    assert not three.has_rows_like(Column.ragged([[1], [2], [3]]))
    assert not three.has_rows_like(replace(three, per_group=True))
    fixed = Column.fixed([1.0, 2.0, 3.0])
    assert not three.has_rows_like(fixed) and not fixed.has_rows_like(three) and not fixed.has_rows_like(fixed)
