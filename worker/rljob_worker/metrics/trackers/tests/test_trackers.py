"""W&B and MLflow with their real libraries, and what a tracker may do to a run: nothing."""

import json
import logging
import os
import re
import struct
import subprocess
import sys
import threading

import pytest

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.metrics.tables import flattened
from rljob_worker.metrics.trackers.background import BackgroundTracker
from rljob_worker.metrics.trackers.mlflow_tracker import legal_name, sized_batches
from rljob_worker.metrics.trackers.run_ids import read_run_id, write_run_id
from rljob_worker.metrics.trackers.tests.mlflow_server import mlflow_server
from rljob_worker.metrics.trackers.tests.wandb_server import wandb_server
from rljob_worker.tests.waiting import wait_for

COLUMNS = ["row", "prompt", "response", "rewards", "reward", "validation"]
OTHERS = [[1, "1+1=", "2", None, 1, True], [2, "1+2=", "4", None, 0.5, True]]
"""Rows of validation, which stand beside the first row of each step and have other columns."""


@pytest.fixture(scope="module")
def mlflow(tmp_path_factory):
    """A server, which takes seconds to start."""
    with mlflow_server(tmp_path_factory.mktemp("mlflow")) as server:
        yield server


def track(run_dir, tracker, first, last, end="close", mlflow_url=""):
    """Steps first to last of a run, in a process of their own; end: `close`, or `fail` for one that fails then."""
    environment = {
        **os.environ, "WANDB_MODE": "offline", "WANDB_PROJECT": "sums-project", "MLFLOW_TRACKING_URI": mlflow_url,
    }  # fmt: skip
    arguments = [str(run_dir), tracker, str(first), str(last), end]
    command = [sys.executable, "-m", "rljob_worker.metrics.trackers.tests.track", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=5 * TEST_TIMEOUT_SECONDS)
    assert done.returncode == 0, done.stderr
    assert "rljob" not in done.stderr, "a warning of ours"


def wandb_records(folder):
    """Everything in W&B's own log of one offline run: LevelDB's log format after a header of 7 bytes, in blocks of
    32 KiB; each piece has a checksum (4 bytes), a length (2) and a kind (1): whole, first, middle or last."""
    from wandb.proto.wandb_internal_pb2 import Record

    (path,) = folder.glob("*.wandb")
    data, at, text, result = path.read_bytes(), 7, b"", []
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        text += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            record, text = Record.FromString(text), b""
            result.append(record)
    return result


def wandb_points(records):
    return [
        {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for record in records
        if record.HasField("history")
    ]


@pytest.mark.slow
def test_wandb_gets_config_metrics_samples_and_files_and_a_resumed_run_is_the_same_run(tmp_path):
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "job.yaml").write_text("kind: RLJob")
    track(run_dir, "WandB", 1, 3, "fail")
    track(run_dir, "WandB", 3, 4)
    folders = sorted((run_dir / "wandb").glob("offline-run-*"))
    ids = [folder.name.rpartition("-")[2] for folder in folders]
    assert ids == [read_run_id(run_dir, "WandB")] * 2
    first, second = map(wandb_records, folders)
    (run,) = [record.run for record in first if record.HasField("run")]
    assert (run.project, run.display_name) == ("sums-project", "sums")
    assert {item.key: json.loads(item.value_json) for item in run.config.update}["algorithm"]["loss"] == {
        "clipLow": 0.2
    }
    points = wandb_points(first)
    assert [(point["step"], point["reward/mean"]) for point in points] == [(1, 0.1), (2, 0.2), (3, 0.3)]
    # step 3 once more, which W&B's own count of steps would have dropped
    assert [point["step"] for point in wandb_points(second)] == [3, 4]
    table = json.loads((folders[0] / "files" / points[0]["samples.path"]).read_text())
    assert (table["columns"], table["data"]) == (COLUMNS, [[1, "2+2=", "4", '{"correct": 1.0}', None, None], *OTHERS])
    assert [record.exit.exit_code for record in first if record.HasField("exit")] == [1], "of an attempt that failed"
    names = {record.artifact.name for record in second if record.HasField("artifact")}
    assert {"sums-checkpoint", "sums-job", "sums-metrics", "sums-samples"} <= names


@pytest.mark.slow
def test_offline_runs_of_wandb_are_one_run_with_all_of_it_once_they_are_synced(tmp_path):
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "job.yaml").write_text("kind: RLJob")
    track(run_dir, "WandB", 1, 3, "fail")
    track(run_dir, "WandB", 3, 4)
    with wandb_server() as server:
        login = {"WANDB_BASE_URL": server.url, "WANDB_API_KEY": "a" * 40, "WANDB_MODE": "online"}
        for folder in sorted((run_dir / "wandb").glob("offline-run-*")):
            command = [sys.executable, "-m", "wandb", "sync", str(folder)]
            environment, limit = {**os.environ, **login}, 5 * TEST_TIMEOUT_SECONDS
            subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, check=True, timeout=limit)
        (run,) = server.runs.values()
    assert list(server.runs) == [read_run_id(run_dir, "WandB")]
    assert (run.project, run.display_name, run.config["seed"]["value"]) == ("sums-project", "sums", 7)
    points = [(point["step"], point["reward/mean"]) for point in run.points]
    assert points == [(1, 0.1), (2, 0.2), (3, 0.3), (3, 0.3), (4, 0.4)], "a resumed run takes step 3 once more"
    assert run.exit_codes == [1, 0] and all(point["samples"]["path"] in run.files for point in run.points)
    assert {"sums-checkpoint", "sums-job", "sums-metrics", "sums-samples"} <= set(server.artifacts)
    assert server.contents["sums-checkpoint/weights"] == b"12345678"


@pytest.mark.slow
def test_mlflow_gets_config_metrics_samples_and_files_and_a_resumed_run_is_the_same_run(tmp_path, mlflow):
    run_dir = tmp_path / "run"
    track(run_dir, "MLflow", 1, 3, "fail", mlflow_url=mlflow.url)
    run_id = read_run_id(run_dir, "MLflow")
    assert mlflow.run(run_id)["info"]["status"] == "FAILED", "of an attempt that failed, until another goes on"
    assert not (run_dir / "report.html").exists()
    track(run_dir, "MLflow", 3, 4, mlflow_url=mlflow.url)
    assert read_run_id(run_dir, "MLflow") == run_id
    assert mlflow.points(run_id, "reward/mean") == [(0.1, 1), (0.2, 2), (0.3, 3), (0.3, 3), (0.4, 4)]
    assert [step for _, step in mlflow.points(run_id, "data/bytes_a-_b")] == [1, 2, 3, 3, 4]
    # a metric, and another whose name goes on from it
    assert mlflow.points(run_id, "validation/accuracy") == mlflow.points(run_id, "validation/accuracy/math")
    run = mlflow.run(run_id)
    assert run["info"]["run_name"] == "sums" and run["info"]["status"] == "FINISHED"
    assert {"key": "algorithm.loss.clipLow", "value": "0.2"} in run["data"]["params"]
    assert json.loads(mlflow.artifact(run_id, "job.json"))["seed"] == 7
    assert json.loads(mlflow.artifact(run_id, "samples/step-000004.json")) == {
        "columns": COLUMNS,
        "data": [[4, "2+2=", "4", '{"correct": 1.0}', None, None], *OTHERS],
    }
    assert mlflow.artifact(run_id, "checkpoint/weights") == b"12345678"
    assert len(mlflow.artifact(run_id, "metrics.jsonl").splitlines()) == 4


class Notes:
    """A tracker that notes what it gets, and fails or hangs where asked to."""

    def __init__(self, bad_step=None, gate=None):
        self.steps, self.closed, self._bad, self._gate = [], False, bad_step, gate
        self.has_failed = None

    def log(self, step, metrics, samples):
        if self._gate is not None:
            self._gate.wait()
        if step == self._bad:
            raise ConnectionError("gone for a moment")
        self.steps.append(step)

    def upload(self, path, name):
        self.steps.append(name)

    def cut_back(self, step):
        self.steps.append(-step)

    def close(self, *, failed=False):
        self.closed, self.has_failed = True, failed


def test_calls_reach_the_tracker_in_order_and_a_failure_costs_only_itself(tmp_path, caplog):
    notes = Notes(bad_step=2)
    tracker = BackgroundTracker("Notes", lambda: notes)
    tracker.cut_back(9)
    for step in (1, 2, 3):
        tracker.log(step, {}, ())
    tracker.upload(tmp_path, "checkpoint")
    tracker.close()
    assert notes.steps == [-9, 1, 3, "checkpoint"] and notes.closed and not notes.has_failed
    assert "Notes failed, and the run goes on without what it was sent: ConnectionError: gone" in caplog.text


def test_a_tracker_that_hangs_holds_nobody_up_and_what_it_costs_is_reported(caplog):
    gate = threading.Event()
    notes = Notes(gate=gate)
    tracker = BackgroundTracker("Notes", lambda: notes, max_waiting=3, close_seconds=0.01)
    for step in range(10):  # one is in the tracker's hands or waits, and three wait
        tracker.log(step, {}, ())
    tracker.close()
    assert "too slow: 3 calls wait for it" in caplog.text
    assert "did not finish within 0 s" in caplog.text
    assert int(re.search(r"and (\d+) found no room", caplog.text)[1]) in (6, 7)
    gate.set()
    wait_for(lambda: notes.closed)


def test_an_end_by_an_error_is_passed_on_after_what_came_before_it():
    notes = Notes()
    tracker = BackgroundTracker("Notes", lambda: notes)
    tracker.log(1, {}, ())
    tracker.close(failed=True)
    assert notes.steps == [1] and notes.has_failed


def test_a_tracker_that_cannot_be_opened_is_tried_again_and_gets_what_came_meanwhile(caplog):
    notes, tries = Notes(), []

    def open_tracker():
        tries.append(1)
        if len(tries) < 3:
            raise OSError("no server")
        return notes

    tracker = BackgroundTracker("Notes", open_tracker, first_retry_seconds=0.001)
    tracker.log(1, {}, ())
    wait_for(lambda: notes.steps == [1])
    tracker.close()
    assert caplog.text.count("cannot be opened, and is tried again: OSError: no server") == 2


def test_a_tracker_that_never_opens_does_not_hold_up_the_end(caplog):
    def open_tracker():
        raise OSError("no server")

    with caplog.at_level(logging.WARNING):
        tracker = BackgroundTracker("Notes", open_tracker)
        tracker.log(1, {}, ())
        tracker.close()
    assert "did not finish" not in caplog.text


def test_ids_of_several_trackers_are_kept_beside_each_other(tmp_path):
    assert read_run_id(tmp_path, "WandB") is None
    write_run_id(tmp_path, "WandB", "a")
    write_run_id(tmp_path, "MLflow", "b")
    assert (read_run_id(tmp_path, "WandB"), read_run_id(tmp_path, "MLflow")) == ("a", "b")
    (tmp_path / "trackers.json").write_text("torn")
    assert read_run_id(tmp_path, "WandB") is None


def test_mlflow_names_and_parameters():
    assert legal_name("data/bytes_rollout->reward") == "data/bytes_rollout-_reward"
    assert dict(flattened({"a": {"b": 1, "c": {"d": "x"}}, "e": [1, 2], "f": None})) == {
        "a.b": "1", "a.c.d": "x", "e": "[1, 2]", "f": "null",
    }  # fmt: skip
    assert list(sized_batches([1, 2, 3, 4, 5], 2)) == [[1, 2], [3, 4], [5]]


@pytest.mark.parametrize(("tracker", "extra"), [("WandB", "wandb"), ("MLflow", "mlflow")])
def test_a_tracker_that_is_not_installed_is_reported_with_what_brings_it(tmp_path, monkeypatch, tracker, extra):
    from rljob_worker.errors import InvalidJob
    from rljob_worker.metrics.sink import RunFiles

    monkeypatch.setitem(sys.modules, extra, None)
    with pytest.raises(InvalidJob, match=rf"spec.monitoring.trackers\[0\] asks for {tracker}.*rljob\[{extra}\]"):
        RunFiles(tmp_path, (tracker,))
