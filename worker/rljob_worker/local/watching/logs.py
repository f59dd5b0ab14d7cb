"""What logs of a run say to the person at the terminal, read while processes write them: how they start, and what the
lead warns of, a checkpoint passed over or a tracker without a server."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from rljob_worker.metrics.trackers import background

_START = re.compile(r"\S+ \S+ INFO rljob\.start: (.+)")
_OURS = re.compile(r"\S+ \S+ WARNING rljob[\w.]*: (.+)")
"""A line of a worker's log that code of ours wrote, not a library."""
_OF_TRACKERS = re.compile(rf"\S+ \S+ WARNING {re.escape(background.log.name)}: (.+)")
BEGINS = " ..."
"""The end of a line that tells of a begin."""


def worker_logs(log_dir: Path, groups: Sequence[str]) -> dict[str, Path]:
    """Logs of the first worker of each group."""
    return {group: log_dir / f"worker-{group}-0-0.log" for group in groups}


class LogTail:
    """Whole lines of a log, each of them once."""

    def __init__(self, path: Path) -> None:
        """path: need not be there yet."""
        self._path = path
        self._read_bytes = 0

    def matches(self, form: re.Pattern[str]) -> list[str]:
        """What lines of this form say, of those that were written since the last call."""
        return [match[1] for line in self._lines() if (match := form.fullmatch(line))]

    def _lines(self) -> list[str]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._read_bytes)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        return whole.decode(errors="replace").splitlines()


class StartLines:
    """Start-phase lines from the logs of several processes, by name."""

    def __init__(self, logs: Mapping[str, Path]) -> None:
        self._logs = {name: LogTail(path) for name, path in logs.items()}

    def news(self) -> list[str]:
        """What was said since the last call, the name before it where there are several."""
        news = [(name, line) for name, log in self._logs.items() for line in log.matches(_START)]
        return [f"{name}: {line}" if len(self._logs) > 1 else line for name, line in news]


class LeadWarnings:
    """Warnings in the lead's log: all of its start, then only those of trackers. What rewards miss in a step
    is in its metrics, which views show."""

    def __init__(self, log: Path) -> None:
        self._log = LogTail(log)
        self._form = _OURS

    def news(self) -> list[str]:
        """In the order they came, since the last call; the first is made once the lead has started."""
        result = self._log.matches(self._form)
        self._form = _OF_TRACKERS
        return result
