"""`Key`: which job."""

from __future__ import annotations

from typing import NamedTuple


class Key(NamedTuple):
    """Namespace and name of an RLJob; what the queue holds and what every log line begins with."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"
