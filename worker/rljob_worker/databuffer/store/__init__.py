"""What one data buffer holds: the arena, segments in it and who still reads them, and the lock around its state."""
