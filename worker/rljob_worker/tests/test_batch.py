import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_worker.batch import Batch, Column


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


def test_a_slice_lies_over_the_same_memory_and_a_take_does_not():
    batch = make_batch([1, 2, 3], [[1, 2], [3], [4, 5]])
    for column in batch.columns.values():
        assert np.shares_memory(column.slice(1, 3).values, column.values)
        assert not np.shares_memory(column.take(np.arange(3)).values, column.values)
    assert [row.tolist() for row in batch["response_ids"].slice(1, 3).to_list()] == [[3], [4, 5]]
    assert batch["rewards"].slice(1, 3).to_list() == [2.0, 3.0]


def test_columns_of_several_kinds_are_not_one():
    with pytest.raises(AssertionError, match="several kinds"):
        Column.concat([Column.fixed([1, 2]), Column.fixed([1.0])])
    with pytest.raises(AssertionError, match="several kinds"):
        Column.concat([Column.fixed([1, 2]), Column.ragged([[1]])])


def test_the_index_of_a_batch_is_its_three_numbers():
    index = make_batch([4, 7], [[1], [2, 3]]).index
    assert (index.row_ids.tolist(), index.group_ids.tolist(), index.num_tokens.tolist()) == ([4, 7], [2, 3], [1, 2])
