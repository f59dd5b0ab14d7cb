"""rljob from Python: jobs on this machine, and jobs on a cluster, as the command line has them.

import rljob

run = rljob.run("job.yaml", on_step=lambda step, metrics: print(step, metrics.get("reward/mean")))

client = rljob.Client(context="research")
job = client.submit("job.yaml", code="rewards/")
for job in client.follow(job.name):
    print(job.phase, job.step, job.reward)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rljob.client import Client as Client
    from rljob.job import Job as Job
    from rljob_api.loading.builder import Pipeline as Pipeline
    from rljob_api.loading.builder import make_job as make_job
    from rljob_api.v1alpha1 import RLJob as RLJob
    from rljob_api.v1alpha1 import RLJobSpec as RLJobSpec
    from rljob_worker.cli.from_python import Run as Run
    from rljob_worker.cli.from_python import RunFailed as RunFailed
    from rljob_worker.cli.from_python import plan as plan
    from rljob_worker.cli.from_python import run as run
    from rljob_worker.cli.from_python import validate as validate

_HERE = "rljob_worker.cli.from_python"
_HOMES = {
    "Client": "rljob.client",
    "Job": "rljob.job",
    "Pipeline": "rljob_api.loading.builder",
    "RLJob": "rljob_api.v1alpha1",
    "RLJobSpec": "rljob_api.v1alpha1",
    "make_job": "rljob_api.loading.builder",
    "Run": _HERE,
    "RunFailed": _HERE,
    "plan": _HERE,
    "run": _HERE,
    "validate": _HERE,
}
__all__ = [
    "Client",
    "Job",
    "Pipeline",
    "RLJob",
    "RLJobSpec",
    "Run",
    "RunFailed",
    "make_job",
    "plan",
    "run",
    "validate",
]


def __getattr__(name: str) -> Any:
    """A name's home is imported when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
