"""How planning and data buffers agree to divide the arena of a host between rows and weights."""

from __future__ import annotations

from math import ceil

WEIGHT_SLOTS_BYTES = 64 << 20
"""What chunks of weights take of an arena at least, on each host that an edge of weights passes."""

LARGEST_WEIGHTS_PART = 8
"""Of a large arena chunks of weights take at most one in so many bytes."""

CONTROL_BYTES = 1 << 20
"""What headers of rows under way take in the memory of a host, at most."""


def weights_share(memory: int) -> int:
    """Bytes of an arena of `memory` bytes that chunks of weights may take; never more than half."""
    return min(max(WEIGHT_SLOTS_BYTES, memory // LARGEST_WEIGHTS_PART), memory // 2)


def memory_beside_weights(rest: int) -> int:
    """The smallest arena in which `rest` bytes are left beside the share of weights that is wanted for them."""
    return max(rest + WEIGHT_SLOTS_BYTES, ceil(rest * LARGEST_WEIGHTS_PART / (LARGEST_WEIGHTS_PART - 1)))
