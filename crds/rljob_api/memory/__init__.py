"""What a worker has in memory, phase by phase: from a model's shape, its job and its mesh, in bytes."""
