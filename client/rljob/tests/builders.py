"""Jobs as an API server has them."""

from __future__ import annotations

from typing import Any

from rljob.job import Job


def condition(kind: str, status: str, reason: str, message: str = "") -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "message": message}


def body(name: str = "small", *, version: int = 1, **status: Any) -> dict[str, Any]:
    """An RLJob of 40 steps in namespace team with these fields of a status."""
    return {
        "apiVersion": "rljob.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": "uid-1",
            "resourceVersion": str(version),
            "creationTimestamp": "2026-01-31T12:00:00Z",
        },
        "spec": {"stop": {"steps": 40}},
        "status": status,
    }


def job(**status: Any) -> Job:
    return Job.read(body(**status))


def pod(name: str, group: str, host: int, attempt: int) -> dict[str, Any]:
    """Of the job `small`."""
    labels = {"rljob.dev/job": "small", "rljob.dev/group": group, "rljob.dev/host-index": str(host)}
    return {"metadata": {"name": name, "labels": labels | {"rljob.dev/attempt": str(attempt)}}}
