"""Files of one run, written by the lead worker: metrics.jsonl, samples.jsonl, TensorBoard events, trackers.

A step that is validated while later ones are under way has its line when that is done; until then the reports that it
is made of are in a file of their own, so that its checkpoint does not have to wait.
"""

import base64
import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from rljob_worker.errors import StorageError
from rljob_worker.metrics.lines import LinesFile, line_file_errors, records_in
from rljob_worker.metrics.trackers.tracker import FAILED_SECONDS, TrackedRun
from rljob_worker.metrics.trackers.trackers import open_trackers
from rljob_worker.rundir.directory import HELD_REPORT, METRICS, REPORT, SAMPLES
from rljob_worker.storage.files import write_atomically
from rljob_worker.storage.paths import StoragePath

log = logging.getLogger(__name__)

FILES = ("job.yaml", "plan.json", METRICS, SAMPLES, REPORT)
"""What a tracker gets of the run's folder at its end."""


class RunFiles:
    """Appends steps; on resume, `cut_back` first."""

    def __init__(
        self,
        run_dir: Path,
        trackers: tuple[str, ...] = (),
        artifacts: tuple[str, ...] = (),
        *,
        name: str = "",
        config: Mapping[str, Any] | None = None,
        failed_seconds: float = FAILED_SECONDS,
        write_report: Callable[[], None] = lambda: None,
    ) -> None:
        """artifacts: what trackers get besides metrics, as in `spec.monitoring.artifacts`.   failed_seconds: how long
        `fail` waits for each of them.   write_report: makes the page of the run, at its end.

        Raises InvalidJob for a tracker that is not installed and StorageError for an unwritable directory.
        """
        self._run_dir, self._artifacts, self._write_report = run_dir, artifacts, write_report
        self._trackers = open_trackers(trackers, TrackedRun(run_dir, name, config or {}, failed_seconds))
        self._held = run_dir / HELD_REPORT
        self._metrics = LinesFile(run_dir / METRICS)
        self._samples = LinesFile(run_dir / SAMPLES)

    def write_step(self, step: int, metrics: Mapping[str, float], samples: Sequence[Mapping[str, Any]]) -> None:
        """Write one step; step 0 is the validation before the first. Raises StorageError when the disk is full."""
        # samples first: a step with a line of metrics is whole
        self._samples.write([{"step": step, **sample} for sample in samples])
        self._metrics.write([{"step": step, **metrics}])
        points = {name: value for name, value in metrics.items() if math.isfinite(value)}
        shown = samples if "Samples" in self._artifacts else ()
        for tracker in self._trackers:
            tracker.log(step, points, shown)

    def metric(self, name: str, first: int, last: int) -> dict[int, float]:
        """What is written down of a metric, by step from `first` to `last`."""
        records = (record for record in records_in(self._run_dir / METRICS) if first <= record["step"] <= last)
        return {record["step"]: record[name] for record in records if record.get(name) is not None}

    def steps(self) -> Iterator[dict[str, Any]]:
        """Metrics of every step that is written down, with `step` among them."""
        return records_in(self._run_dir / METRICS)

    def hold_report(self, step: int, report: bytes) -> None:
        """Keep the merged report of a step, whose checkpoint may be committed, until its validation is there, too."""
        with line_file_errors(self._held):
            write_atomically(self._held, json.dumps([step, base64.b64encode(report).decode()]))

    def held_report(self, step: int) -> bytes | None:
        """The report of a step that was never written for want of its validation."""
        if not self._held.exists() or any(record["step"] == step for record in records_in(self._run_dir / METRICS)):
            return None
        held_step, report = json.loads(self._held.read_text())
        return base64.b64decode(report) if held_step == step else None

    def write_checkpoint(self, place: StoragePath) -> None:
        """A committed checkpoint, for the trackers that are to have it: they take files of this machine only."""
        if "Checkpoints" not in self._artifacts:
            return
        if isinstance(place, Path):
            self._upload(place, "checkpoint")
        elif self._trackers:
            log.warning("trackers do not get the checkpoint %s, which is in a store", place)

    def cut_back(self, step: int) -> None:
        """Forget steps after `step`, so that the files are those of a run that never failed.

        Step 0 forgets everything: a run without a checkpoint begins with validation again.
        """
        last = step if step > 0 else -1
        self._metrics.cut_back(last)
        self._samples.cut_back(last)
        for tracker in self._trackers:
            tracker.cut_back(last)

    def close(self) -> None:
        self._metrics.close()
        self._samples.close()
        self._write_report()
        if "Files" in self._artifacts:
            for path in filter(Path.exists, (self._run_dir / name for name in FILES)):
                self._upload(path, path.stem)
        for tracker in self._trackers:
            tracker.close()

    def fail(self) -> None:
        """The attempt ends by an error; what was not written stays unwritten. Raises nothing."""
        ends = [self._metrics.close, self._samples.close]
        ends += [partial(tracker.close, failed=True) for tracker in self._trackers]
        for end in ends:
            with suppress(StorageError):
                end()

    def _upload(self, path: Path, name: str) -> None:
        for tracker in self._trackers:
            tracker.upload(path, name)
