"""What the lead warns of, for the person at the terminal: a checkpoint passed over, or a tracker without a server."""

import re
from pathlib import Path

from rljob_worker.local.watching.log_tail import LogTail
from rljob_worker.metrics.trackers import background

_OURS = re.compile(r"\S+ \S+ WARNING rljob[\w.]*: (.+)")
"""A line of a worker's log that code of ours wrote, not a library."""
_OF_TRACKERS = re.compile(rf"\S+ \S+ WARNING {re.escape(background.log.name)}: (.+)")


class LeadWarnings:
    """Warnings in the lead's log: all of its start, then only those of trackers. What rewards miss in a step
    is in its metrics, which views show."""

    def __init__(self, log: Path) -> None:
        self._log = LogTail(log)
        self._form = _OURS

    def news(self) -> list[str]:
        """In the order they came, since the last call; the first is made once the lead has started."""
        result = [match[1] for line in self._log.lines() if (match := self._form.fullmatch(line))]
        self._form = _OF_TRACKERS
        return result
