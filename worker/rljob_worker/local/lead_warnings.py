"""What the lead warns of while it starts, for the person at the terminal: say, a checkpoint passed over."""

import re
from pathlib import Path

_OURS = re.compile(r"\S+ \S+ WARNING rljob[\w.]*: (.+)")
"""A line of a worker's log that code of ours wrote, not a library."""


def lead_warnings(log_dir: Path, lead_group: str) -> list[str]:
    """In the order they came; empty when the lead has written nothing."""
    log = log_dir / f"worker-{lead_group}-0-0.log"
    text = log.read_text(errors="replace") if log.exists() else ""
    return [match[1] for line in text.splitlines() if (match := _OURS.fullmatch(line))]
