"""`Admission`: what the queue of a job says of it, when it has one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from rljob_operator.manifests.context import Placement


class AdmissionState(StrEnum):
    """What a queue says of a job."""

    ADMITTED = "Admitted"
    WAITING = "Waiting"
    EVICTED = "Evicted"
    SPENT = "Spent"
    """Its place was given back for good: another has to be asked for."""


@dataclass(frozen=True)
class Admission:
    """Whether pods may be made, why not, and where they may run."""

    state: AdmissionState
    message: str = ""
    placements: Mapping[str, Placement] = field(default_factory=dict)
    """By worker group; groups that may run anywhere are left out."""
    unplaceable: str = ""
    """Why it is not known where pods may run, so that none can be made.  Empty: it is."""
