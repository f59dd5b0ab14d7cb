"""Plans of published models: what a worker has in memory."""
