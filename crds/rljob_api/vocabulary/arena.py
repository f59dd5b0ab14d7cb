"""Sizes that planning and data buffers agree on."""

WEIGHT_SLOTS_BYTES = 64 << 20
"""What chunks of weights take in the arena of each host that an edge of weights passes, at most."""

CONTROL_BYTES = 1 << 20
"""What metrics, verdicts and openings take in the arena of a host, at most."""
