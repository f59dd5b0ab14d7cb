"""Pages of docs/ that are made from types, catalogue and the worker's functions."""
