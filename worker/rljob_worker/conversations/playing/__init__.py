"""Plays trajectories: coroutines in an event loop, turns of the engine, commands for peers of a copy."""
