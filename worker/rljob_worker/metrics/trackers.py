"""Where metrics go besides the JSON lines. A new tracker is a class with `log`, `cut_back`, `close`, named here."""

import importlib.util
from collections.abc import Callable, Mapping, Sequence
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
    """TensorBoard always, then what the job asks for; InvalidJob for one that is not installed."""
    check_installed(names)
    # TensorBoard opens a file: last, so that one that is missing leaves nothing open
    wanted = [*dict.fromkeys(name for name in names if name != "TensorBoard"), "TensorBoard"]
    return [TRACKERS[name](run) for name in wanted]


class WandBTracker:
    """Weights & Biases; the account comes from its own environment variables."""

    def __init__(self, run: Run) -> None:
        import wandb

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
        import mlflow

        self._mlflow = mlflow
        self._mlflow.set_experiment("rljob")
        self._run_id = self._mlflow.start_run(run_name=run.name).info.run_id

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        legal = {legal_mlflow_name(name): value for name, value in metrics.items()}
        # by name: which run is active is a matter of the thread
        self._mlflow.log_metrics(legal, step=step, run_id=self._run_id)

    def cut_back(self, step: int) -> None:
        """A resumed run is a new MLflow run; nothing to do."""

    def close(self) -> None:
        self._mlflow.end_run()


def legal_mlflow_name(name: str) -> str:
    """MLflow refuses `>` and other signs that edge names have."""
    return "".join(sign if sign.isalnum() or sign in "_-. /" else "_" for sign in name)


def check_installed(names: Sequence[str]) -> None:
    """InvalidJob, with the fix, for a tracker whose package is not in this environment."""
    for index, name in enumerate(names):
        package = PACKAGES.get(name)
        if package is not None and not _is_installed(package):
            raise InvalidJob(
                f"spec.monitoring.trackers[{index}] asks for {name}, but the Python package {package} is not "
                f"installed; install it in the environment (or image) of the workers, or remove {name} from the list"
            )


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:  # hidden by whoever put None in its place
        return False


def _tensorboard(run: Run) -> Tracker:
    # takes half a second to import
    from rljob_worker.metrics.tensorboard import TensorBoardTracker

    return TensorBoardTracker(run.directory / "tensorboard")


PACKAGES = {"WandB": "wandb", "MLflow": "mlflow"}
"""What trackers need that rljob does not bring."""

TRACKERS: dict[str, Callable[[Run], Tracker]] = {
    "TensorBoard": _tensorboard,
    "WandB": WandBTracker,
    "MLflow": MLflowTracker,
}
