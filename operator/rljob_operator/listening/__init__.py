"""Hears of changes, and says which job is looked at next."""
