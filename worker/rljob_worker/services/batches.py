"""Which texts a model reads at once. Pure."""

from __future__ import annotations

from collections.abc import Sequence


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
