"""`Key`: which job; `Subject`: which state of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Key(NamedTuple):
    """Namespace and name of an RLJob; what the queue holds and what every log line begins with."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True)
class EventSubject:
    """The job that events are about, as it was when they happened."""

    namespace: str
    name: str
    uid: str
    resource_version: str
