"""What workers say of their start, read from the logs of each group's first while they write them."""

import re
from collections.abc import Sequence
from pathlib import Path

_START = re.compile(r"\S+ \S+ INFO rljob\.start: (.+)")
BEGINS = " ..."
"""The end of a line that tells of a begin."""


class StartLines:
    """Of one attempt."""

    def __init__(self, log_dir: Path, groups: Sequence[str]) -> None:
        self._logs = {group: log_dir / f"worker-{group}-0-0.log" for group in groups}
        self._read = dict.fromkeys(groups, 0)

    def news(self) -> list[str]:
        """What was said since the last call, the group before it where there are several."""
        return [line for group in self._logs for line in self._of(group)]

    def _of(self, group: str) -> list[str]:
        try:
            with self._logs[group].open("rb") as file:
                file.seek(self._read[group])
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._read[group] += len(whole)
        whose = f"{group}: " if len(self._logs) > 1 else ""
        lines = whole.decode(errors="replace").splitlines()
        return [whose + found[1] for line in lines if (found := _START.fullmatch(line))]
