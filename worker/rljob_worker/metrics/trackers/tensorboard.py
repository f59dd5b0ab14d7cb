"""TensorBoard event files, written with TensorBoard's own record format and without torch."""

import os
import re
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from rljob_worker.metrics.lines import line_file_errors
from rljob_worker.metrics.trackers.tracker import TrackedRun

_PREFIX = "events.out.tfevents."
_NAMED = re.compile(r"events\.out\.tfevents\.(\d+\.\d+)\.")


class TensorBoardTracker:
    """One event file per process; metric names become tags, their first part the section."""

    def __init__(self, directory: Path) -> None:
        begin = _after_others(directory, time.time())
        self._path = directory / f"{_PREFIX}{begin:.6f}.{socket.gethostname()}.{os.getpid()}"
        with line_file_errors(self._path):
            directory.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("ab")
        self._records = RecordWriter(self._file)
        self._write(Event(wall_time=time.time(), file_version="brain.Event:2"))

    def log(self, step: int, metrics: Mapping[str, float], samples: Sequence[Mapping[str, Any]]) -> None:
        """One point per metric; samples are in samples.jsonl beside it."""
        values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._write(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))

    def upload(self, path: Path, name: str) -> None:
        """What it would take is beside it already."""

    def cut_back(self, step: int) -> None:
        """Make readers forget points after `step`, those of earlier files included."""
        self._write(Event(wall_time=time.time(), step=step + 1, session_log=SessionLog(status=SessionLog.START)))

    def close(self, *, failed: bool = False) -> None:
        with line_file_errors(self._path):
            self._file.close()

    def _write(self, event: Event) -> None:
        with line_file_errors(self._path):
            self._records.write(event.SerializeToString())
            self._file.flush()


def open_tensorboard(run: TrackedRun) -> TensorBoardTracker:
    return TensorBoardTracker(run.directory / "tensorboard")


def _after_others(directory: Path, now: float) -> float:
    """A time for the name of a new file: readers take files in the order of their names and pass over an earlier one.

    An attempt on a host whose clock is behind must not lie before the attempt that it follows.
    """
    times = [float(result[1]) for path in directory.glob(f"{_PREFIX}*") if (result := _NAMED.match(path.name))]
    return max([now, *(item + 1e-6 for item in times)])
