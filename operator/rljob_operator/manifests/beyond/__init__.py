"""What of a job goes beyond the ceilings."""

from rljob_operator.manifests.beyond.job import beyond

__all__ = ["beyond"]
