"""Our part of a Workload's status: readiness, pods that will not come back, its admission given back, its end."""

from __future__ import annotations

from rljob_operator.gangs.kueue.conditions import condition_manifest, condition_message, with_condition
from rljob_operator.gangs.provider import Readiness
from rljob_operator.manifests.context import Manifest

_ADMISSION_CONDITIONS = (
    "QuotaReserved",
    "BlockedOnPreemptionGates",
    "Evicted",
    "Admitted",
    "Preempted",
    "Requeued",
    "DeactivationTarget",
    "Finished",
    "PodsReady",
)
_ADMISSION_FIELDS = (
    "requeueState",
    "resourceRequests",
    "accumulatedPastExecutionTimeSeconds",
    "schedulingStats",
    "clusterName",
    "nominatedClusterNames",
    "unhealthyNodes",
    "preemptionGates",
    "admissionChecks",
)
_REQUEUED_AT_ONCE = ("Preempted", "NodeFailures")
"""Evictions after which a job may queue again at once; after others Kueue says when."""


def readiness_status(workload: Manifest, readiness: Readiness, now: str) -> Manifest | None:
    """How far the pods are; None where Kueue knows."""
    ready = condition_manifest(
        "PodsReady",
        readiness.pods_ready,
        "Started" if readiness.pods_ready else "WaitForStart",
        "all pods are ready" if readiness.pods_ready else "not all pods are ready",
        workload,
        now,
    )
    return _changed(workload, ready, _reclaimable(workload, readiness))


def finished_status(workload: Manifest, message: str, now: str) -> Manifest | None:
    """The job has ended; None where Kueue knows."""
    reason = "Succeeded" if "succeeded" in message else "Failed"
    finished = condition_manifest("Finished", True, reason, message, workload, now)
    return _changed(workload, finished, workload.get("status", {}).get("reclaimablePods", []))


def released_status(workload: Manifest, now: str) -> Manifest:
    """The admission taken back, as the manager that gave it: everything else that it wrote stays."""
    status = workload["status"]
    reason = next((item["reason"] for item in status["conditions"] if item["type"] == "Evicted"), "Released")
    message = condition_message(workload, "Evicted") or "the job has given its pods back"
    conditions = [item for item in status["conditions"] if item["type"] in _ADMISSION_CONDITIONS]
    news = (
        condition_manifest("Requeued", reason in _REQUEUED_AT_ONCE, reason, message, workload, now),
        condition_manifest("QuotaReserved", False, "Pending", message, workload, now),
        condition_manifest("Admitted", False, "NoReservation", "the workload has no reservation", workload, now),
    )
    for item in news:
        conditions = with_condition(conditions, item)
    kept = {name: status[name] for name in _ADMISSION_FIELDS if name in status}
    return _status(workload, {**kept, "conditions": conditions}, versioned=True)


def _changed(workload: Manifest, news: Manifest, reclaimable: list[Manifest]) -> Manifest | None:
    """Our part of the status, all of it: what an apply leaves out, it takes away."""
    status = workload.get("status", {})
    own = [item for item in status.get("conditions", []) if item["type"] in ("PodsReady", "Finished")]
    conditions = with_condition(own, news)
    if conditions == own and reclaimable == status.get("reclaimablePods", []):
        return None
    written: Manifest = {"conditions": conditions}
    if reclaimable:
        written["reclaimablePods"] = reclaimable
    return _status(workload, written, versioned=False)


def _status(workload: Manifest, status: Manifest, *, versioned: bool) -> Manifest:
    fields = ("name", "namespace", "resourceVersion") if versioned else ("name", "namespace")
    about = {name: workload["metadata"][name] for name in fields}
    return {"apiVersion": workload["apiVersion"], "kind": "Workload", "metadata": about, "status": status}


def _reclaimable(workload: Manifest, readiness: Readiness) -> list[Manifest]:
    """Pods that ended well and whose quota others may have; while there is quota, Kueue lets the count only grow."""
    if "admission" not in workload.get("status", {}):
        return []
    said = {item["name"]: item["count"] for item in workload.get("status", {}).get("reclaimablePods", [])}
    counts = {
        name: max(said.get(name, 0), readiness.finished_pods.get(name, 0))
        for name in dict.fromkeys((*said, *readiness.finished_pods))
    }
    return [{"name": name, "count": count} for name, count in counts.items() if count]
