"""Does what was decided."""
