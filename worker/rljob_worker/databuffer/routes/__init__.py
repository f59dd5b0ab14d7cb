"""Who sends what to whom, from the Plan alone: pure, and the same on every host."""
