"""Where metrics go besides the JSON lines. A new tracker is a class with `log`, `cut_back`, `close`, named here."""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rljob_worker.errors import InvalidJob


class Tracker(Protocol):
    """Gets every step's metrics, in order."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def cut_back(self, step: int) -> None:
        """Forget steps after `step`: the run goes on from there."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Run:
    """What a tracker is told of the run."""

    directory: Path
    name: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)


def open_trackers(names: tuple[str, ...], run: Run) -> list[Tracker]:
    """TensorBoard always, then what the job asks for; InvalidJob for one that is unknown or not installed."""
    for index, name in enumerate(names):
        if name not in TRACKERS:
            raise InvalidJob(f"spec.monitoring.trackers[{index}]: no tracker {name}; there are {', '.join(TRACKERS)}")
    # TensorBoard opens a file: last, so that one that is missing leaves nothing open
    wanted = [*dict.fromkeys(name for name in names if name != "TensorBoard"), "TensorBoard"]
    return [TRACKERS[name](run) for name in wanted]


class WandBTracker:
    """Weights & Biases; the account comes from its own environment variables."""

    def __init__(self, run: Run) -> None:
        wandb = installed("wandb", "WandB")
        # one id per directory: a resumed run goes on in the same chart
        self._run = wandb.init(
            project="rljob", name=run.name, id=run.name or None, resume="allow", dir=str(run.directory),
            config=dict(run.config),
        )  # fmt: skip

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def cut_back(self, step: int) -> None:
        """W&B keeps its first point of a step; nothing to do."""

    def close(self) -> None:
        self._run.finish()


class MLflowTracker:
    """MLflow; the server comes from MLFLOW_TRACKING_URI."""

    def __init__(self, run: Run) -> None:
        self._mlflow = installed("mlflow", "MLflow")
        self._mlflow.set_experiment("rljob")
        self._mlflow.start_run(run_name=run.name)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._mlflow.log_metrics({legal_mlflow_name(name): value for name, value in metrics.items()}, step=step)

    def cut_back(self, step: int) -> None:
        """A resumed run is a new MLflow run; nothing to do."""

    def close(self) -> None:
        self._mlflow.end_run()


def legal_mlflow_name(name: str) -> str:
    """MLflow refuses `>` and other signs that edge names have."""
    return "".join(sign if sign.isalnum() or sign in "_-. /" else "_" for sign in name)


def installed(module: str, tracker: str) -> Any:
    """The module, or InvalidJob with the fix."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise InvalidJob(
            f"spec.monitoring.trackers asks for {tracker}, but the Python package {module} is not installed; "
            f"install it in the environment (or image) of the workers, or remove {tracker} from the list"
        ) from error


def _tensorboard(run: Run) -> Tracker:
    # takes half a second to import
    from rljob_worker.metrics.tensorboard import TensorBoardTracker

    return TensorBoardTracker(run.directory / "tensorboard")


TRACKERS: dict[str, Callable[[Run], Tracker]] = {
    "TensorBoard": _tensorboard,
    "WandB": WandBTracker,
    "MLflow": MLflowTracker,
}
