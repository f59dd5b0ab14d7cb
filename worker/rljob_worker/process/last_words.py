"""The error report of a worker that ends: final step, checkpoint, cause.

A worker writes `RLJOB_TERMINATION_FILE`; its launcher copies the one that explains the end of the pod to
`RLJOB_TERMINATION_LOG`, which Kubernetes shows in the pod's status and the local supervisor reads.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

TERMINATION_FILE = "RLJOB_TERMINATION_FILE"
TERMINATION_LOG = "RLJOB_TERMINATION_LOG"
KUBERNETES_TERMINATION_LOG = Path("/dev/termination-log")
MAX_BYTES = 4096
"""Kubernetes keeps no more of a termination message."""


@dataclass(frozen=True, slots=True)
class LastWords:
    """Why a worker ended. `step` is the last finished one, `checkpoint` the last committed one (None: none yet)."""

    code: int
    step: int = 0
    checkpoint: int | None = None
    cause: str = ""
    worker: str = ""

    def to_json(self) -> str:
        """At most MAX_BYTES of JSON; a long cause keeps its beginning, where the error's name is."""
        # half of a surrogate pair, as a byte-level tokenizer may leave it, is not text to readers of this
        said = asdict(self) | {"cause": self.cause.encode("utf-8", "backslashreplace").decode()}
        text = json.dumps(said)
        overhang = len(text.encode()) - MAX_BYTES
        if overhang <= 0:
            return text
        # a character of the cause takes up to 12 bytes of JSON (escaped surrogate pair)
        kept = self.cause.encode("ascii", "replace").decode()[: max(0, MAX_BYTES - 512) // 2]
        return json.dumps(said | {"cause": kept + " …"}, ensure_ascii=False)


def write_last_words(words: LastWords) -> None:
    """Leave `words` where the launcher looks; does nothing when started without one."""
    path = os.environ.get(TERMINATION_FILE)
    if path:
        Path(path).write_text(words.to_json())


def read_last_words(path: Path) -> LastWords | None:
    """What was left at `path`; None if nothing, or nothing of ours, is there."""
    try:
        result: Any = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(result, dict) or not isinstance(result.get("code"), int):
        return None
    known = {name: result[name] for name in LastWords.__slots__ if isinstance(result.get(name), _TYPES[name])}
    return LastWords(**known)


_TYPES: Mapping[str, Any] = {"code": int, "step": int, "checkpoint": int | None, "cause": str, "worker": str}
"""User code shares the worker's process, and may have written the file."""


def termination_log() -> Path | None:
    """Where the pod's own last words go, if anywhere."""
    named = os.environ.get(TERMINATION_LOG)
    if named:
        return Path(named)
    return KUBERNETES_TERMINATION_LOG if KUBERNETES_TERMINATION_LOG.is_file() else None
