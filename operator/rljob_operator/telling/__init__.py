"""Tells people and Prometheus what happened to jobs."""
