"""Metrics and samples in files, and trackers."""

import json
import math
import socket
import subprocess
import sys
import time

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rljob_worker.errors import StorageError
from rljob_worker.metrics.lines import LinesFile
from rljob_worker.metrics.sink import RunFiles
from rljob_worker.metrics.trackers import trackers
from rljob_worker.storage.paths import storage_path


def records(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_steps(files, *steps):
    for step in steps:
        files.write_step(step, {"reward/mean": step / 10}, [{"row": step, "response": "4"}])


def points(run_dir, tag="reward/mean"):
    events = EventAccumulator(str(run_dir / "tensorboard"))
    events.Reload()
    return [(point.step, round(point.value, 6)) for point in events.Scalars(tag)]


def test_one_line_per_step_and_sample(tmp_path):
    files = RunFiles(tmp_path)
    write_steps(files, 1, 2)
    files.close()
    assert records(tmp_path / "metrics.jsonl") == [{"step": 1, "reward/mean": 0.1}, {"step": 2, "reward/mean": 0.2}]
    assert records(tmp_path / "samples.jsonl")[1] == {"step": 2, "row": 2, "response": "4"}
    assert points(tmp_path) == [(1, 0.1), (2, 0.2)]


@pytest.mark.parametrize("skew_seconds", [-3600.0, 0.0, 3600.0])
def test_an_attempt_on_a_host_with_another_clock_is_read_after_the_one_it_follows(tmp_path, monkeypatch, skew_seconds):
    now = 1_800_000_000.0
    for attempt, clock in enumerate((now, now + skew_seconds, now - 7200)):
        monkeypatch.setattr(time, "time", lambda clock=clock: clock)
        monkeypatch.setattr(socket, "gethostname", lambda attempt=attempt: f"host-{9 - attempt}")
        files = RunFiles(tmp_path)
        write_steps(files, attempt)
        files.close()
    (tmp_path / "tensorboard" / "events.out.tfevents.mine").touch()
    names = sorted(path.name for path in (tmp_path / "tensorboard").iterdir())
    assert [name.split(".")[5] for name in names[:3]] == ["host-9", "host-8", "host-7"]
    later = [float(".".join(name.split(".")[3:5])) for name in names[:3]]
    assert later[0] == pytest.approx(now, abs=1e-5) and later[2] - later[0] < max(skew_seconds, 0) + 1e-4
    assert points(tmp_path) == [(0, 0.0), (1, 0.1), (2, 0.2)]


class Ends:
    """A tracker that notes how it was closed, and fails where asked to."""

    def __init__(self, error=None):
        self.failed, self._error = [], error

    def close(self, *, failed=False):
        self.failed.append(failed)
        if self._error is not None:
            raise self._error


class Uploads:
    """A tracker that notes which files it gets."""

    def __init__(self, sent):
        self._sent = sent

    def upload(self, path, name):
        self._sent.append(path)

    def log(self, step, metrics, samples):
        """Nothing is noted of steps."""

    def close(self, *, failed=False):
        """Nothing is left to send."""


def test_trackers_are_notified_of_an_error_and_nothing_else_is_written(tmp_path, monkeypatch):
    full, other = Ends(StorageError("full")), Ends()
    opened = {"WandB": full, "MLflow": other, "TensorBoard": Ends()}
    monkeypatch.setattr(trackers, "open_tracker", lambda name, run: opened[name])
    files = RunFiles(tmp_path, ("WandB", "MLflow"))
    files.fail()
    assert (full.failed, other.failed) == ([True], [True])
    assert not (tmp_path / "report.html").exists()


def test_the_page_of_a_run_is_made_at_its_end_and_goes_to_trackers(tmp_path, monkeypatch):
    sent = []
    monkeypatch.setattr(trackers, "open_tracker", lambda name, run: Uploads(sent if name == "WandB" else []))
    page = tmp_path / "report.html"
    files = RunFiles(tmp_path, ("WandB",), ("Files",), write_report=lambda: page.write_text("page"))
    write_steps(files, 1)
    assert not page.exists()
    files.close()
    assert [path.name for path in sent] == ["metrics.jsonl", "samples.jsonl", "report.html"]


def test_checkpoints_in_a_store_are_not_sent_to_trackers(tmp_path, monkeypatch, caplog):
    sent = []
    monkeypatch.setattr(trackers, "open_tracker", lambda name, run: Uploads(sent if name == "WandB" else []))
    files = RunFiles(tmp_path, ("WandB",), ("Checkpoints",))
    files.write_checkpoint(storage_path("s3://bucket/run/checkpoints/step-2"))
    files.write_checkpoint(tmp_path)
    files.close()
    assert sent == [tmp_path]
    assert "do not get the checkpoint s3://bucket/run/checkpoints/step-2" in caplog.text


def test_lines_are_there_before_the_file_is_closed(tmp_path):
    files = RunFiles(tmp_path)
    write_steps(files, 1)
    assert len(records(tmp_path / "metrics.jsonl")) == len(records(tmp_path / "samples.jsonl")) == 1
    files.close()


def test_a_resumed_run_looks_as_if_it_had_never_failed(tmp_path):
    first = RunFiles(tmp_path)
    write_steps(first, 0, 1, 2, 3)
    first.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "reward/me')
    second = RunFiles(tmp_path)
    second.cut_back(2)
    write_steps(second, 3, 4)
    second.close()
    assert [record["step"] for record in records(tmp_path / "metrics.jsonl")] == [0, 1, 2, 3, 4]
    assert [record["step"] for record in records(tmp_path / "samples.jsonl")] == [0, 1, 2, 3, 4]
    assert points(tmp_path) == [(0, 0.0), (1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4)]


def test_a_start_without_checkpoint_forgets_everything(tmp_path):
    first = RunFiles(tmp_path)
    write_steps(first, 0, 1)
    first.close()
    second = RunFiles(tmp_path)
    second.cut_back(0)
    write_steps(second, 0)
    second.close()
    assert [record["step"] for record in records(tmp_path / "metrics.jsonl")] == [0]
    assert points(tmp_path) == [(0, 0.0)]


def test_json_has_no_nan(tmp_path):
    files = RunFiles(tmp_path)
    files.write_step(1, {"kl/old": math.inf, "reward/mean": 1.0}, [{"rewards": [math.nan, 2.0]}])
    files.close()
    assert records(tmp_path / "metrics.jsonl") == [{"step": 1, "kl/old": None, "reward/mean": 1.0}]
    assert records(tmp_path / "samples.jsonl") == [{"step": 1, "rewards": [None, 2.0]}]


def test_a_full_disk_is_a_storage_error_that_names_the_file(tmp_path):
    (tmp_path / "full").symlink_to("/dev/full")
    file = LinesFile(tmp_path / "full")
    with pytest.raises(StorageError, match=r"cannot write .*/full: No space left on device; free space"):
        file.write([{"step": 1}])
    file.close()


def test_an_unwritable_directory_is_a_storage_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot write"):
        RunFiles(tmp_path / "file" / "run")


def test_the_sink_needs_no_torch():
    modules = "rljob_worker.metrics.sink, rljob_worker.metrics.trackers.tensorboard"
    code = f"import {modules}, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
