"""Calls into user code from an event loop: the pool of processes that answer them, and what runs in each."""
