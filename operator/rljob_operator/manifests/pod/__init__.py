"""The pods of an attempt: one per host of each worker group."""
