"""rljob from Python: jobs on this machine, and jobs on a cluster, as the command line has them.

import rljob

result = rljob.train("Qwen/Qwen3-0.6B", rows, [my_reward], steps=100)
result.metrics["reward/mean"].plot()

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
    from rljob.errors import ClusterError as ClusterError
    from rljob.job import Job as Job
    from rljob_api.loading.builder import Pipeline as Pipeline
    from rljob_api.loading.builder import make_job as make_job
    from rljob_api.v1alpha1 import RLJob as RLJob
    from rljob_api.v1alpha1 import RLJobSpec as RLJobSpec
    from rljob_api.vocabulary.problem import InvalidJobError as InvalidJobError
    from rljob_worker.cli.from_python.callbacks import CallbackTimeout as CallbackTimeout
    from rljob_worker.cli.from_python.running import Run as Run
    from rljob_worker.cli.from_python.running import RunFailed as RunFailed
    from rljob_worker.cli.from_python.running import plan as plan
    from rljob_worker.cli.from_python.running import run as run
    from rljob_worker.cli.from_python.running import validate as validate
    from rljob_worker.cli.from_python.train import submit as submit
    from rljob_worker.cli.from_python.train import train as train
    from rljob_worker.cli.from_python.train import training as training
    from rljob_worker.cli.from_python.training import Training as Training
    from rljob_worker.cli.from_python.training import TrainingResult as TrainingResult
    from rljob_worker.errors import BadData as BadData
    from rljob_worker.errors import DeadlineExceeded as DeadlineExceeded
    from rljob_worker.errors import InvalidJob as InvalidJob
    from rljob_worker.errors import NotHere as NotHere
    from rljob_worker.errors import StorageError as StorageError

_RUNNING = "rljob_worker.cli.from_python.running"
_TRAIN = "rljob_worker.cli.from_python.train"
_TRAINING = "rljob_worker.cli.from_python.training"
_ERRORS = "rljob_worker.errors"
_HOMES = {
    "BadData": _ERRORS,
    "CallbackTimeout": "rljob_worker.cli.from_python.callbacks",
    "Client": "rljob.client",
    "ClusterError": "rljob.errors",
    "DeadlineExceeded": _ERRORS,
    "InvalidJob": _ERRORS,
    "InvalidJobError": "rljob_api.vocabulary.problem",
    "Job": "rljob.job",
    "NotHere": _ERRORS,
    "Pipeline": "rljob_api.loading.builder",
    "RLJob": "rljob_api.v1alpha1",
    "RLJobSpec": "rljob_api.v1alpha1",
    "Run": _RUNNING,
    "RunFailed": _RUNNING,
    "StorageError": _ERRORS,
    "Training": _TRAINING,
    "TrainingResult": _TRAINING,
    "make_job": "rljob_api.loading.builder",
    "plan": _RUNNING,
    "run": _RUNNING,
    "submit": _TRAIN,
    "train": _TRAIN,
    "training": _TRAIN,
    "validate": _RUNNING,
}
__all__ = [
    "BadData",
    "CallbackTimeout",
    "Client",
    "ClusterError",
    "DeadlineExceeded",
    "InvalidJob",
    "InvalidJobError",
    "Job",
    "NotHere",
    "Pipeline",
    "RLJob",
    "RLJobSpec",
    "Run",
    "RunFailed",
    "StorageError",
    "Training",
    "TrainingResult",
    "make_job",
    "plan",
    "run",
    "submit",
    "train",
    "training",
    "validate",
]


def __dir__() -> list[str]:
    """What completion offers."""
    return __all__


def __getattr__(name: str) -> Any:
    """A name's home is imported when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
