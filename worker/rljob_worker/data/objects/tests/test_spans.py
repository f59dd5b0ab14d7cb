"""Fewer requests for the same bytes."""

from hypothesis import given
from hypothesis import strategies as st

from rljob_worker.data.listing import DataFile
from rljob_worker.data.objects.store import MAX_GAP_BYTES, MAX_SPAN_BYTES, Span, coalesced_spans

FILES = [DataFile(name, 1 << 30, "1") for name in "ab"]
starts = st.integers(0, 6 * MAX_SPAN_BYTES) | st.integers(0, 4 * MAX_GAP_BYTES)
spans = st.builds(
    lambda file, start, size: Span(file, start, start + size), st.sampled_from(FILES), starts, st.integers(1, 3000)
)


@given(st.lists(spans, max_size=40))
def test_every_span_lies_in_the_request_that_is_said_to_hold_it(given):
    requests, home = coalesced_spans(given)
    for at, span in zip(home, given, strict=True):
        assert requests[at].file == span.file
        assert requests[at].start <= span.start and span.stop <= requests[at].stop
    assert len(requests) <= len(given) and set(home) == set(range(len(requests)))
    assert all(request.stop - request.start <= MAX_SPAN_BYTES for request in requests)


def test_neighbours_are_one_request_and_strangers_are_not():
    file, other = FILES
    near, far = Span(file, 100 + MAX_GAP_BYTES, 200 + MAX_GAP_BYTES), Span(file, 1 << 20, (1 << 20) + 1)
    requests, home = coalesced_spans([far, Span(file, 0, 100), Span(other, 100, 200), near])
    assert requests == [Span(file, 0, 200 + MAX_GAP_BYTES), far, Span(other, 100, 200)]
    assert home == [1, 0, 2, 0]
