"""What a plan needs beside torch on the machine where its workers run."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping

from rljob_api.planning.plan import Plan
from rljob_api.vocabulary.problem import Problem
from rljob_worker.rehearsal.finding import Finding

COMPILER = "g++"
"""Where the variable CXX names no other: torch's choice."""


def tool_findings(plan: Plan, environment: Mapping[str, str]) -> Iterator[Finding]:
    """What is missing here. environment: of a worker."""
    compiler = environment.get("CXX", COMPILER)
    if plan.spec.training.compile and shutil.which(compiler, path=environment.get("PATH")) is None:
        message = f"torch compiles layers with {compiler}, which is not installed here"
        fix = "Install g++, or name another C++ compiler in the variable CXX, or write false."
        yield Finding(Problem("spec.training.compile", "true", message, fix))
