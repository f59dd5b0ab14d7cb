"""What an RLJob is: types, validation, DAG, planner, failure policy.  Pure: no I/O, no torch, no Kubernetes.

Public names are looked up on first use, so a worker that only reads a plan does not pay for validation.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rljob_api.checks.validation import problems_of as problems_of
    from rljob_api.loading.builder import Pipeline as Pipeline
    from rljob_api.loading.load import job_from_object as job_from_object
    from rljob_api.loading.load import parse_job as parse_job
    from rljob_api.planning.costs.traffic import expected_bytes as expected_bytes
    from rljob_api.planning.plan import Plan as Plan
    from rljob_api.v1alpha1 import RLJob as RLJob
    from rljob_api.v1alpha1 import RLJobSpec as RLJobSpec
    from rljob_api.vocabulary.exit_codes import ExitCode as ExitCode
    from rljob_api.vocabulary.problem import InvalidJobError as InvalidJobError
    from rljob_api.vocabulary.problem import Problem as Problem

_HOMES = {
    "Pipeline": "loading.builder",
    "ExitCode": "vocabulary.exit_codes",
    "job_from_object": "loading.load",
    "parse_job": "loading.load",
    "Plan": "planning.plan",
    "InvalidJobError": "vocabulary.problem",
    "Problem": "vocabulary.problem",
    "expected_bytes": "planning.costs.traffic",
    "RLJob": "v1alpha1",
    "RLJobSpec": "v1alpha1",
    "problems_of": "checks.validation",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
