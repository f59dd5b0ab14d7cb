"""Checkpoints of shards that another number of ranks can read."""
