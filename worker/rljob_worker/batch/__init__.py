"""The table that travels between stages, and which rows it has."""

from rljob_worker.batch.table import Batch, Column, Indices

__all__ = ["Batch", "Column", "Indices"]
