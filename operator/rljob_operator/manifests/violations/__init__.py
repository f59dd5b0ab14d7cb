"""What of a job goes beyond the ceilings."""

from rljob_operator.manifests.violations.job import job_violations

__all__ = ["job_violations"]
