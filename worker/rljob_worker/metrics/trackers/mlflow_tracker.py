"""MLflow. The server comes from MLFLOW_TRACKING_URI, the experiment from MLFLOW_EXPERIMENT_NAME."""

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rljob_worker.errors import InvalidJob
from rljob_worker.metrics.tables import flattened, table_of
from rljob_worker.metrics.trackers.run_ids import read_run_id, write_run_id
from rljob_worker.metrics.trackers.tracker import TrackedRun

EXPERIMENT = "rljob"
"""Where MLFLOW_EXPERIMENT_NAME names none."""
MAX_METRICS, MAX_PARAMETERS = 1000, 100
"""Metrics and parameters of one request, at most, by MLflow's API."""
_WITHOUT_HOST = ("databricks", "uc")
"""Servers that are named by a word of MLflow's."""
MAX_VALUE_CHARACTERS = 500
"""Characters of a parameter's value, at most; servers of all versions take as many."""


class MLflowTracker:
    """One run of MLflow per run directory."""

    def __init__(self, directory: Path, name: str, config: Mapping[str, Any]) -> None:
        from mlflow import MlflowClient

        self._client = MlflowClient()
        self._run_id = self._existing(directory) or self._created(directory, name, config)
        self._client.log_dict(self._run_id, dict(config), "job.json")

    def log(self, step: int, metrics: Mapping[str, float], samples: Sequence[Mapping[str, Any]]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        points = [Metric(legal_name(name), value, now, step) for name, value in metrics.items()]
        for some in sized_batches(points, MAX_METRICS):
            self._client.log_batch(self._run_id, metrics=some)
        if samples:
            columns, rows = table_of(samples)
            table = {"columns": columns, "data": rows}
            self._client.log_text(self._run_id, json.dumps(table), f"samples/step-{step:06d}.json")

    def upload(self, path: Path, name: str) -> None:
        if path.is_dir():
            self._client.log_artifacts(self._run_id, str(path), name)
        else:
            self._client.log_artifact(self._run_id, str(path))

    def cut_back(self, step: int) -> None:
        """MLflow forgets nothing; the same steps come once more, and its charts show the later points."""

    def close(self, *, failed: bool = False) -> None:
        self._client.set_terminated(self._run_id, "FAILED" if failed else "FINISHED")

    def _existing(self, directory: Path) -> str | None:
        """The run of earlier attempts, running again; None where there is none, or somebody deleted it."""
        from mlflow.exceptions import MlflowException

        run_id = read_run_id(directory, "MLflow")
        if run_id is None:
            return None
        try:
            if self._client.get_run(run_id).info.lifecycle_stage != "active":
                return None
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return None
            raise
        self._client.update_run(run_id, status="RUNNING")
        return run_id

    def _created(self, directory: Path, name: str, config: Mapping[str, Any]) -> str:
        from mlflow.entities import Param

        experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        result = self._client.get_experiment_by_name(experiment)
        experiment_id = result.experiment_id if result else self._client.create_experiment(experiment)
        run_id = str(self._client.create_run(experiment_id, run_name=name).info.run_id)
        write_run_id(directory, "MLflow", run_id)
        parameters = [Param(legal_name(key), value[:MAX_VALUE_CHARACTERS]) for key, value in flattened(config)]
        for some in sized_batches(parameters, MAX_PARAMETERS):
            self._client.log_batch(run_id, params=some)
        return run_id


def sized_batches(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    """At most `size` at a time."""
    for begin in range(0, len(items), size):
        yield items[begin : begin + size]


def legal_name(name: str) -> str:
    """MLflow refuses `>` and other signs that edge names have."""
    return "".join(sign if sign.isalnum() or sign in "_-. /" else "_" for sign in name)


def open_mlflow(run: TrackedRun) -> MLflowTracker:
    return MLflowTracker(run.directory, run.name, run.config)


def without_server(environment: Mapping[str, str]) -> str | None:
    """A sentence where an environment names no server. Raises InvalidJob where it names a folder."""
    uri = environment.get("MLFLOW_TRACKING_URI", "")
    if uri.startswith("file:") or (uri and "://" not in uri and not uri.startswith(_WITHOUT_HOST)):
        raise InvalidJob(
            f"MLFLOW_TRACKING_URI names a folder, {uri}, which MLflow maintains no longer and which cannot hold "
            "validation/accuracy beside validation/accuracy/math; name a server that `mlflow server` starts, such as "
            "http://127.0.0.1:5000"
        )
    if uri:
        return None
    return "MLflow has no server here: MLFLOW_TRACKING_URI is not set, such as to http://mlflow.example:5000"
