"""Reading a run's metrics while they are written: what the live table and `rljob status` show."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from rljob_worker.metrics.lines import parsed_lines

Record = dict[str, Any]

BESIDES_STAGES = ("weight_sync", "validation", "checkpoint")
"""What a step does besides its stages; each has its `time/<name>_seconds`, as stages have."""


class MetricsTail:
    """Follows metrics.jsonl; `records` is what the file holds now, by ascending step."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode = -1
        self._offset = 0
        self.records: list[Record] = []

    def poll(self) -> list[Record]:
        """Read what is new. Returns records that were not there at the last call.

        A file that was cut back is another file: it is read again, and only what differs counts as new.
        """
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            return []
        with file:
            known: dict[int, Record] = {}
            status = os.fstat(file.fileno())
            if status.st_ino != self._inode or status.st_size < self._offset:
                known, self.records = {record["step"]: record for record in self.records}, []
                self._inode, self._offset = status.st_ino, 0
            file.seek(self._offset)
            data = file.read()
        whole = data.rfind(b"\n") + 1
        self._offset += whole
        fresh = [record for _, record in parsed_lines(data[:whole].splitlines(keepends=True))]
        self.records.extend(fresh)
        return [record for record in fresh if record != known.get(record["step"])]


@dataclass(frozen=True, slots=True)
class RunProgress:
    """A run's records with the figures that a person asks for."""

    records: list[Record] = field(default_factory=list)
    total_steps: int = 0
    stages: tuple[str, ...] = ()
    """Stages of the plan."""

    @property
    def step(self) -> int:
        """The last finished step; 0 before the first."""
        return int(self.records[-1]["step"]) if self.records else 0

    def latest(self, name: str) -> float | None:
        """The last value of a metric, of any step."""
        return next((record[name] for record in reversed(self.records) if record.get(name) is not None), None)

    def first(self, name: str) -> float | None:
        """The first value of a metric."""
        return next((record[name] for record in self.records if record.get(name) is not None), None)

    def best(self, name: str) -> tuple[int, float] | None:
        """Step and value where a metric was highest; the earliest of equals."""
        seen = [(record[name], -record["step"]) for record in self.records if record.get(name) is not None]
        if not seen:
            return None
        value, negative_step = max(seen)
        return -negative_step, value

    def mean_of_last(self, name: str, count: int) -> float | None:
        """Mean over the last `count` records that have the metric."""
        values = [record[name] for record in self.records if record.get(name) is not None][-count:]
        return sum(values) / len(values) if values else None

    def mean_of_first(self, name: str, count: int) -> float | None:
        """Mean over the first `count` records that have the metric."""
        values = [record[name] for record in self.records if record.get(name) is not None][:count]
        return sum(values) / len(values) if values else None

    def eta_seconds(self) -> float | None:
        """Seconds to the last step at the median pace of the last ten; None before the first step."""
        paces = [record["time/step_seconds"] for record in self.records if record.get("time/step_seconds")][-10:]
        return (self.total_steps - self.step) * median(paces) if paces else None

    def stage_seconds(self, record: Mapping[str, Any]) -> dict[str, float]:
        """Seconds of one step per stage of the plan, and of what a step does besides its stages, where it did it."""
        names = (*self.stages, *BESIDES_STAGES)
        result = {name: record.get(f"time/{name}_seconds") for name in names}
        return {name: seconds for name, seconds in result.items() if seconds is not None}
