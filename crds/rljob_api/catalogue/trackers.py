"""Trackers, by the name that a job writes in `monitoring.trackers`."""

from __future__ import annotations

from dataclasses import dataclass

from rljob_api.catalogue.declarations import Declarations
from rljob_api.catalogue.needed_packages import NeededPackage, from_extra


@dataclass(frozen=True, slots=True)
class DeclaredTracker:
    """What a tracker needs, and who opens it."""

    name: str
    opener: str
    """`module:function` of the worker, from a `Run` to a `Tracker`: see rljob_worker.metrics.trackers."""
    needs: NeededPackage | None = None
    in_background: bool = True
    """Whether it works in a thread of its own, so that no step waits for it and none fails with it."""
    unreachable: str | None = None
    """`module:function` of the worker, from a worker's environment to a sentence on what is missing, such as an
    account; None where nothing is. A warning before a run; it raises InvalidJob for what no machine can have."""


TRACKERS = Declarations(
    "tracker",
    "rljob.trackers",
    DeclaredTracker,
    DeclaredTracker("TensorBoard", "rljob_worker.metrics.trackers.tensorboard:open_tensorboard", in_background=False),
    DeclaredTracker(
        "WandB",
        "rljob_worker.metrics.trackers.wandb_tracker:open_wandb",
        from_extra("wandb", "remove WandB from the list"),
        unreachable="rljob_worker.metrics.trackers.wandb_tracker:without_login",
    ),
    DeclaredTracker(
        "MLflow",
        "rljob_worker.metrics.trackers.mlflow_tracker:open_mlflow",
        from_extra("mlflow", "remove MLflow from the list"),
        unreachable="rljob_worker.metrics.trackers.mlflow_tracker:without_server",
    ),
)
