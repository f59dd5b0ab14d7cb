"""Accelerators that are not there: what a node tells of them."""
