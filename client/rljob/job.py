"""`Job`: an RLJob of a cluster as it was read, in Python's words. Pure.

What an operator of another version writes beside it is left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from rljob_api.v1alpha1.status import ENDED_PHASES
from rljob_api.vocabulary.exit_codes import ExitCode


@dataclass(frozen=True)
class Job:
    """One look at a job."""

    name: str
    namespace: str
    phase: str
    """Pending, Starting, Running, Restarting, Suspending, Suspended, Succeeded or Failed."""
    step: int
    """The last finished one; 0 before."""
    total_steps: int
    reward: float | None
    """Mean reward of that step."""
    ready: str
    """Pods that are ready, of all: `2/2`."""
    attempt: int
    restarts: int
    created: datetime
    reason: str
    """Why it does not run, or failed, in a word; empty while all is well."""
    message: str
    """Why it does not run, or failed, in a sentence."""
    failure_code: int | None
    """Exit code of the last failure that was reported; None where there was none."""
    metrics: Mapping[str, float]
    """The most telling ones of the last step."""
    uid: str
    version: str
    """Version of the object; another look with the same one shows nothing new."""

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will come of it."""
        return self.phase in ENDED_PHASES

    @property
    def exit_code(self) -> ExitCode | int:
        """What a command that waited for the job's end ends with."""
        if self.phase == "Succeeded":
            return ExitCode.DONE
        if self.phase == "Failed":
            return self.failure_code or ExitCode.INVALID_JOB
        return ExitCode.STOPPED

    def to_json(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return asdict(self) | {"created": self.created.isoformat()}

    @staticmethod
    def read(body: Mapping[str, Any]) -> Job:
        """The job of an object of the API."""
        metadata, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
        progress = status.get("progress") or {}
        reason, message = _what_is_wrong(status)
        return Job(
            name=metadata["name"],
            namespace=metadata["namespace"],
            phase=status.get("phase", "Pending"),
            step=int(progress.get("step", 0)),
            total_steps=int(progress.get("totalSteps") or (spec.get("stop") or {}).get("steps", 0)),
            reward=_number(progress.get("reward")),
            ready=status.get("ready", "0/0"),
            attempt=int(status.get("attempt", 0)),
            restarts=int(status.get("restarts", 0)),
            created=datetime.fromisoformat(metadata["creationTimestamp"]),
            reason=reason,
            message=message,
            failure_code=(status.get("lastFailure") or {}).get("exitCode"),
            metrics={item["name"]: float(item["value"]) for item in progress.get("metrics") or ()},
            uid=metadata["uid"],
            version=metadata["resourceVersion"],
        )


_WRONG = {"Failed": "True", "Accepted": "False", "Degraded": "True", "QuotaReserved": "False", "Scheduled": "False"}
"""Conditions that say what is wrong, the most telling first, with the status in which they do."""
_NEVER_WRONG = frozenset({"NoQueue", "NotStarted", "CreatingPods"})


def _what_is_wrong(status: Mapping[str, Any]) -> tuple[str, str]:
    """Reason and message of the most telling condition that is not as it should be."""
    if status.get("phase") in ("Succeeded", "Suspended", "Suspending"):
        return "", ""
    conditions = {item["type"]: item for item in status.get("conditions") or ()}
    for kind, wrong in _WRONG.items():
        result = conditions.get(kind) or {}
        if result.get("status") == wrong and result["reason"] not in _NEVER_WRONG:
            return result["reason"], result.get("message", "")
    return "", ""


def _number(text: str | None) -> float | None:
    return None if text is None else float(text)
