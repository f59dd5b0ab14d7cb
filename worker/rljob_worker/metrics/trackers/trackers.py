"""The trackers that a job can name, and those of one run, opened. A new one is a `Tracker`, named here."""

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rljob_worker.errors import InvalidJob
from rljob_worker.metrics.trackers.background import FAILED_SECONDS, BackgroundTracker
from rljob_worker.metrics.trackers.tracker import Tracker


@dataclass(frozen=True, slots=True)
class Run:
    """What a tracker is told of the run."""

    directory: Path
    name: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    failed_seconds: float = FAILED_SECONDS
    """How long an attempt that failed waits for what is on its way."""


def open_trackers(names: Sequence[str], run: Run) -> list[Tracker]:
    """TensorBoard always, then what the job asks for; InvalidJob for one that is not installed."""
    check_installed(names)
    # TensorBoard opens a file: last, so that one that is missing leaves nothing open
    wanted = [*dict.fromkeys(name for name in names if name != "TensorBoard"), "TensorBoard"]
    return [TRACKERS[name](run) for name in wanted]


def check_installed(names: Sequence[str]) -> None:
    """InvalidJob, with the fix, for a tracker whose package is not in this environment."""
    for index, name in enumerate(names):
        package = PACKAGES.get(name)
        if package is not None and not _is_installed(package):
            raise InvalidJob(
                f"spec.monitoring.trackers[{index}] asks for {name}, but the Python package {package} is not "
                f"installed; `pip install 'rljob[{package}]'` brings it to the workers' environment or image; or "
                f"remove {name} from the list"
            )


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:  # hidden by whoever put None in its place
        return False


def _tensorboard(run: Run) -> Tracker:
    # takes half a second to import
    from rljob_worker.metrics.trackers.tensorboard import TensorBoardTracker

    return TensorBoardTracker(run.directory / "tensorboard")


def _wandb(run: Run) -> Tracker:
    from rljob_worker.metrics.trackers.wandb_tracker import WandBTracker

    return WandBTracker(run.directory, run.name, run.config)


def _mlflow(run: Run) -> Tracker:
    from rljob_worker.metrics.trackers.mlflow_tracker import MLflowTracker

    return MLflowTracker(run.directory, run.name, run.config)


def _in_background(name: str, make: Callable[[Run], Tracker], run: Run) -> Tracker:
    return BackgroundTracker(name, partial(make, run), failed_seconds=run.failed_seconds)


PACKAGES = {"WandB": "wandb", "MLflow": "mlflow"}
"""What trackers need that rljob does not bring; the extra of each has its package's name."""

TRACKERS: dict[str, Callable[[Run], Tracker]] = {
    "TensorBoard": _tensorboard,
    "WandB": partial(_in_background, "WandB", _wandb),
    "MLflow": partial(_in_background, "MLflow", _mlflow),
}
