"""Which run of a tracker belongs to a run's folder, so that a resumed run goes on in the same charts."""

import json
import threading
from pathlib import Path

from rljob_worker.metrics.lines import line_file_errors

FILE = "trackers.json"
_writing = threading.Lock()


def read_run_id(directory: Path, tracker: str) -> str | None:
    """The id that an earlier attempt left for this tracker."""
    try:
        ids = json.loads((directory / FILE).read_text())
    except (FileNotFoundError, ValueError):
        return None
    result = ids.get(tracker) if isinstance(ids, dict) else None
    return result if isinstance(result, str) else None


def write_run_id(directory: Path, tracker: str, run_id: str) -> None:
    """Keep it beside those of other trackers, each of which has a thread of its own. Raises StorageError."""
    path = directory / FILE
    with _writing, line_file_errors(path):
        try:
            ids = json.loads(path.read_text())
        except (FileNotFoundError, ValueError):
            ids = {}
        partial = path.with_name(f".{FILE}.partial")
        partial.write_text(json.dumps({**ids, tracker: run_id}, indent=1))
        partial.replace(path)
