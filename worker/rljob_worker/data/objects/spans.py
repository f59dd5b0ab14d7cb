"""Neighbouring spans of a file as one request: pure."""

from __future__ import annotations

from collections.abc import Sequence

from rljob_worker.data.objects.store import Span

MAX_GAP_BYTES = 64 << 10
"""Bytes that are read and thrown away rather than asked around: a request costs more than they do."""

MAX_SPAN_BYTES = 8 << 20
"""No request grows beyond this by joining."""


def joined(spans: Sequence[Span]) -> tuple[list[Span], list[int]]:
    """Fewer spans that cover all, and in which of them each of the given ones lies."""
    order = sorted(range(len(spans)), key=lambda i: (spans[i].file.path, spans[i].start))
    found: list[Span] = []
    home = [0] * len(spans)
    for i in order:
        span = spans[i]
        if found and _fits(found[-1], span):
            found[-1] = Span(span.file, found[-1].start, max(found[-1].stop, span.stop))
        else:
            found.append(span)
        home[i] = len(found) - 1
    return found, home


def _fits(before: Span, span: Span) -> bool:
    near = before.file == span.file and span.start - before.stop <= MAX_GAP_BYTES
    return near and span.stop - before.start <= MAX_SPAN_BYTES
