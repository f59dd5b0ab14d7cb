"""The most bytes that torch hands out at once."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from torch.profiler import ProfilerActivity, profile


class Peak:
    """The most bytes of tensors that came up beyond what there was."""

    def __init__(self) -> None:
        self.profile = profile(activities=[ProfilerActivity.CPU], profile_memory=True)

    def __enter__(self) -> Peak:
        self.profile.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.profile.__exit__(*error)

    def bytes(self, below: float = float("inf")) -> int:
        """Once the block is over, of what is smaller than `below`, each by itself."""
        sizes = [size for size in self._sizes() if abs(size) < below]
        return max(accumulate(sizes))

    def _sizes(self) -> Iterator[int]:
        """Bytes handed out (positive) and given back, in order."""
        for event in sorted(events(self.profile), key=lambda item: item.start_time_ns):
            if event.name == "[memory]":
                yield event.extra_fields.alloc_size


def events(result: profile) -> Iterator[Any]:
    pending = list(result.profiler.kineto_results.experimental_event_tree())
    while pending:
        event = pending.pop()
        pending += event.children
        yield event
