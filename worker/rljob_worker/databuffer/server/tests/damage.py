"""Bytes that are nearly a message."""

from hypothesis import strategies as st


def damaged(whole: bytes) -> st.SearchStrategy[bytes]:
    """Cut, with a byte changed, or with more behind."""
    place = st.integers(0, len(whole) - 1)
    cut = place.map(lambda at: whole[:at])
    changed = st.tuples(place, st.integers(0, 255)).map(lambda it: whole[: it[0]] + bytes([it[1]]) + whole[it[0] + 1 :])
    return st.one_of(cut, changed, st.binary(min_size=1, max_size=50).map(lambda more: whole + more))
