"""Reads everything that a decision about a job follows from."""
