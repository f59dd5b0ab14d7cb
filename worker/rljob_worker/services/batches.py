"""Which texts a model reads at once. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Read = TypeVar("Read")
Found = TypeVar("Found")


def batches_by_length(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Indexes of texts, each once: texts of like length together, as many as padded have at most `max_tokens`; a longer
    one is alone.

    lengths [5, 1, 4, 1], max_tokens 8 -> [[1, 3], [2], [0]]: 2 tokens, 4 and 5 of padded ones; 4 and 5 would be 10
    """
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: (lengths[i], i)):
        if batches and (len(batches[-1]) + 1) * lengths[index] <= max_tokens:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches


def map_in_batches(
    read: Sequence[Read],
    lengths: Sequence[int],
    max_tokens: int,
    find: Callable[[list[Read]], Sequence[Found]],
) -> list[Found]:
    """What `find` makes of some at a time, in the order of `read`. lengths: of each, in tokens."""
    result: dict[int, Found] = {}
    for batch in batches_by_length(lengths, max_tokens):
        result |= zip(batch, find([read[i] for i in batch]), strict=True)
    return [result[i] for i in range(len(read))]
