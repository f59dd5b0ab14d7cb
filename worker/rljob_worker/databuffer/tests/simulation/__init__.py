"""Whole jobs of real data buffers on one thread, in virtual time, over a network that fails as a seed says."""
