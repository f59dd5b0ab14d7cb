"""Weights from the ranks that train to those that generate: ways, versions, and what both cost."""
