"""Data planes that move the same rows from those who make them to those who use them: ours, its ceilings, its peers."""
