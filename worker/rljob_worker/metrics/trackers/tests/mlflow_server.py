"""MLflow's own server on this machine, with SQLite and a folder for artifacts, as `mlflow server` starts it."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.tests.waiting import wait_for

START_SECONDS = 4 * TEST_TIMEOUT_SECONDS
"""It imports pandas, and lays out a database; on a machine that is busy that takes half a minute."""
WITHOUT_MORE = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
"""Neither queues of jobs nor word to anybody."""


@dataclass(frozen=True)
class MLflowServer:
    """What it says over HTTP, without the library that spoke to it."""

    url: str

    def run(self, run_id: str) -> dict[str, Any]:
        """`info` and `data` of a run."""
        return self._ask("api/2.0/mlflow/runs/get", run_id=run_id)["run"]

    def points(self, run_id: str, metric: str) -> list[tuple[float, int]]:
        """Values and steps of a metric, in the order in which they came."""
        result = self._ask("api/2.0/mlflow/metrics/get-history", run_id=run_id, metric_key=metric)["metrics"]
        return [(item["value"], int(item["step"])) for item in sorted(result, key=lambda item: int(item["timestamp"]))]

    def artifact(self, run_id: str, path: str) -> bytes:
        with urlopen(f"{self.url}/get-artifact?{urlencode({'run_id': run_id, 'path': path})}") as answer:
            return answer.read()

    def _ask(self, what: str, **query: str) -> dict[str, Any]:
        with urlopen(f"{self.url}/{what}?{urlencode(query)}") as answer:
            return json.load(answer)


@contextmanager
def mlflow_server(folder: Path) -> Iterator[MLflowServer]:
    """Once it answers, until the block ends."""
    port = _free_port()
    server, log = MLflowServer(f"http://127.0.0.1:{port}"), folder / "server.log"
    command = [
        sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1",
        "--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--artifacts-destination", str(folder / "artifacts"),
    ]  # fmt: skip
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=os.environ | WITHOUT_MORE, stdout=output, stderr=output, start_new_session=True
        )
    try:
        wait_for(lambda: _answers(server) or process.poll() is not None, START_SECONDS)
        assert process.poll() is None, log.read_text()
        yield server
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _answers(server: MLflowServer) -> bool:
    try:
        with urlopen(f"{server.url}/health", timeout=TEST_TIMEOUT_SECONDS) as answer:
            return answer.status == 200
    except (URLError, TimeoutError, ConnectionError):
        return False


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]
