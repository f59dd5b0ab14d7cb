"""Batches of texts of similar length."""

from hypothesis import given
from hypothesis import strategies as st

from rljob_worker.services.batches import batches_by_length, map_in_batches


def test_texts_of_like_length_are_read_together():
    # 1 and 1 padded: 2 tokens; with the 4 they would be 12, more than 8; 4 and 5 would be 10
    assert batches_by_length([5, 1, 4, 1], 8) == [[1, 3], [2], [0]]
    assert batches_by_length([], 8) == []


@given(st.lists(st.integers(0, 50), max_size=40), st.integers(1, 200))
def test_every_text_is_read_once_and_within_the_bound(lengths, max_tokens):
    batches = batches_by_length(lengths, max_tokens)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        longest = max(lengths[index] for index in batch)
        assert len(batch) == 1 or len(batch) * longest <= max_tokens


def test_what_is_found_comes_in_the_order_of_what_is_read():
    read, together = ["ccccc", "a", "bbbb", "d"], []

    def find(some):
        together.append(some)
        return [item.upper() for item in some]

    assert map_in_batches(read, [len(item) for item in read], 8, find) == ["CCCCC", "A", "BBBB", "D"]
    assert together == [["a", "d"], ["bbbb"], ["ccccc"]]
