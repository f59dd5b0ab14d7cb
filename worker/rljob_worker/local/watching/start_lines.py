"""What processes say of their start, read from their logs while they write them."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from rljob_worker.local.watching.log_tail import LogTail

_START = re.compile(r"\S+ \S+ INFO rljob\.start: (.+)")
BEGINS = " ..."
"""The end of a line that tells of a begin."""


def worker_logs(log_dir: Path, groups: Sequence[str]) -> dict[str, Path]:
    """Logs of the first worker of each group."""
    return {group: log_dir / f"worker-{group}-0-0.log" for group in groups}


class StartLines:
    """Start-phase lines from the logs of several processes, by name."""

    def __init__(self, logs: Mapping[str, Path]) -> None:
        self._logs = {name: LogTail(path) for name, path in logs.items()}

    def news(self) -> list[str]:
        """What was said since the last call, the name before it where there are several."""
        return [line for name in self._logs for line in self._of(name)]

    def _of(self, name: str) -> list[str]:
        prefix = f"{name}: " if len(self._logs) > 1 else ""
        return [prefix + match[1] for line in self._logs[name].lines() if (match := _START.fullmatch(line))]
