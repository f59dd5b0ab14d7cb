"""What a run writes, read while processes write it: metrics, lines of the start, warnings."""
