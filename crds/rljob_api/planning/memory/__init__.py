"""What the workers of a plan have in memory, and how much they may."""
