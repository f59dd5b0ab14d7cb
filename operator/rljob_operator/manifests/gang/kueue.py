"""Kueue: quota through a Workload of our own, which follows the job and not its attempts.

    made -> QuotaReserved -> Admitted -> pods, PodsReady -> Finished
                                |
                             Evicted -> pods go -> released -> waits again

Field names are those of `kueue.x-k8s.io` v1beta2 and v1beta1, which differ only in how a priority class is named.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from rljob_operator import names
from rljob_operator.manifests.context import JobContext, Manifest, Placement
from rljob_operator.manifests.gang.conditions import condition, is_true, message_of, with_condition
from rljob_operator.manifests.gang.gang import Admission, AdmissionState, Readiness, Reference
from rljob_operator.manifests.gang.kueue_workload import (
    GROUP,
    JOB_UID_LABEL,
    VERSIONS,
    QueuePriority,
    pod_set,
    priority_fields,
    queue_of,
)
from rljob_operator.manifests.gang.none import Ungrouped
from rljob_operator.manifests.metadata import metadata

POD_SET_LABEL = f"{GROUP}/podset"
WORKLOAD_ANNOTATION = f"{GROUP}/workload"
TOPOLOGY_GATE = f"{GROUP}/topology"
ADMISSION_MANAGER = "kueue-admission"
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
_PRIORITY_FIELDS = ("priority", "priorityClassName", "priorityClassSource", "priorityClassRef")
_REQUEUED_AT_ONCE = ("Preempted", "NodeFailures")
"""Evictions after which a job may queue again at once; after others Kueue says when."""


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Kueue(Ungrouped):
    """`version` is the one that the cluster serves; `priority` is what the job's priority class is worth there."""

    provider = "Kueue"
    release_manager = ADMISSION_MANAGER
    is_queue = True

    def __init__(
        self, version: str = VERSIONS[0], priority: QueuePriority | None = None, now: Callable[[], str] = _now
    ) -> None:
        self.api_version = f"{GROUP}/{version}"
        self.kinds = ((self.api_version, "Workload"),)
        self._priority = priority
        self._now = now

    def objects(self, context: JobContext, attempt: int) -> list[Manifest]:
        spec: Manifest = {"podSets": [pod_set(context, group) for group in context.plan.groups]}
        queue = queue_of(context)
        if queue is not None:
            spec["queueName"] = queue
        if self._priority is not None:
            spec |= priority_fields(self._priority, self.api_version)
        labels = {JOB_UID_LABEL: context.uid}
        return [
            {
                "apiVersion": self.api_version,
                "kind": "Workload",
                "metadata": metadata(context, names.workload_name(context.name), "workload", labels),
                "spec": spec,
            }
        ]

    def references(self, objects: Sequence[Manifest]) -> list[Reference]:
        """The flavors of the admission, which say which nodes were meant."""
        workload = self._workload(objects)
        if workload is None:
            return []
        flavors = (name for each in _assignments(workload) for name in each.get("flavors", {}).values())
        return [Reference(self.api_version, "ResourceFlavor", name) for name in dict.fromkeys(flavors)]

    def admission(self, objects: Sequence[Manifest]) -> Admission:
        workload = self._workload(objects)
        if workload is None:
            return Admission(AdmissionState.WAITING, "Kueue has no Workload of the job yet")
        holds_quota = "admission" in workload.get("status", {})
        if is_true(workload, "Evicted") and holds_quota:
            return Admission(AdmissionState.EVICTED, message_of(workload, "Evicted"))
        if is_true(workload, "Finished"):
            return Admission(AdmissionState.SPENT, "Kueue's Workload is finished")
        if not is_true(workload, "Admitted"):
            said = message_of(workload, "Admitted" if is_true(workload, "QuotaReserved") else "QuotaReserved")
            return Admission(AdmissionState.WAITING, said or "waiting for quota")
        flavors = {each["metadata"]["name"]: each for each in objects if each["kind"] == "ResourceFlavor"}
        missing = [each.name for each in self.references(objects) if each.name not in flavors]
        if missing:
            message = f"cannot read ResourceFlavor {', '.join(missing)}, which says where pods may run"
            return Admission(AdmissionState.ADMITTED, message_of(workload, "Admitted"), unplaceable=message)
        placements = {each["name"]: _placement(workload, each, flavors) for each in _assignments(workload)}
        return Admission(AdmissionState.ADMITTED, message_of(workload, "Admitted"), placements)

    def waits_for_all(self, objects: Sequence[Manifest]) -> bool:
        """Only where Kueue itself chooses the nodes; elsewhere the scheduler may place half a gang."""
        workload = self._workload(objects)
        assignments = [] if workload is None else _assignments(workload)
        return bool(assignments) and all("topologyAssignment" in each for each in assignments)

    def renewed(self, objects: Sequence[Manifest], wanted: Sequence[Manifest]) -> list[Manifest]:
        """Priority at any time; the queue until there is quota."""
        workload = self._workload(objects)
        if workload is None or is_true(workload, "Finished"):
            return []
        fields = _PRIORITY_FIELDS if "admission" in workload.get("status", {}) else (*_PRIORITY_FIELDS, "queueName")
        spec = wanted[0]["spec"]
        changed = {name: spec[name] for name in fields if name in spec}
        if all(workload.get("spec", {}).get(name) == value for name, value in changed.items()):
            return []
        about = {name: workload["metadata"][name] for name in ("name", "namespace")}
        return [{"apiVersion": self.api_version, "kind": "Workload", "metadata": about, "spec": changed}]

    def report(self, objects: Sequence[Manifest], readiness: Readiness) -> list[Manifest]:
        workload = self._workload(objects)
        if workload is None or is_true(workload, "Finished"):
            return []
        ready = condition(
            "PodsReady",
            readiness.pods_ready,
            "Started" if readiness.pods_ready else "WaitForStart",
            "all pods are ready" if readiness.pods_ready else "not all pods are ready",
            workload,
            self._now(),
        )
        return self._changed(workload, ready, _reclaimable(workload, readiness))

    def release(self, objects: Sequence[Manifest]) -> list[Manifest]:
        """Takes the admission back, as the manager that gave it: everything else that it wrote stays."""
        workload = self._workload(objects)
        if workload is None or "admission" not in workload["status"]:
            return []
        status = workload["status"]
        reason = next((each["reason"] for each in status["conditions"] if each["type"] == "Evicted"), "Released")
        message, now = message_of(workload, "Evicted") or "the job has given its pods back", self._now()
        conditions = [each for each in status["conditions"] if each["type"] in _ADMISSION_CONDITIONS]
        news = (
            condition("Requeued", reason in _REQUEUED_AT_ONCE, reason, message, workload, now),
            condition("QuotaReserved", False, "Pending", message, workload, now),
            condition("Admitted", False, "NoReservation", "the workload has no reservation", workload, now),
        )
        for each in news:
            conditions = with_condition(conditions, each)
        kept = {name: status[name] for name in _ADMISSION_FIELDS if name in status}
        return [self._status(workload, {**kept, "conditions": conditions})]

    def finish(self, objects: Sequence[Manifest], message: str) -> list[Manifest]:
        workload = self._workload(objects)
        if workload is None or is_true(workload, "Finished"):
            return []
        reason = "Succeeded" if "succeeded" in message else "Failed"
        finished = condition("Finished", True, reason, message, workload, self._now())
        return self._changed(workload, finished, workload.get("status", {}).get("reclaimablePods", []))

    def _workload(self, objects: Sequence[Manifest]) -> Manifest | None:
        return next((each for each in objects if each["kind"] == "Workload"), None)

    def _changed(self, workload: Manifest, news: Manifest, reclaimable: list[Manifest]) -> list[Manifest]:
        """Our part of the status, all of it: what an apply leaves out, it takes away."""
        status = workload.get("status", {})
        own = [each for each in status.get("conditions", []) if each["type"] in ("PodsReady", "Finished")]
        conditions = with_condition(own, news)
        if conditions == own and reclaimable == status.get("reclaimablePods", []):
            return []
        written: Manifest = {"conditions": conditions}
        if reclaimable:
            written["reclaimablePods"] = reclaimable
        return [self._status(workload, written, versioned=False)]

    def _status(self, workload: Manifest, status: Manifest, *, versioned: bool = True) -> Manifest:
        found = {name: workload["metadata"][name] for name in ("name", "namespace")}
        if versioned:
            found["resourceVersion"] = workload["metadata"]["resourceVersion"]
        return {"apiVersion": self.api_version, "kind": "Workload", "metadata": found, "status": status}


def _assignments(workload: Manifest) -> list[Manifest]:
    found: list[Manifest] = workload.get("status", {}).get("admission", {}).get("podSetAssignments", [])
    return found


def _placement(workload: Manifest, assignment: Manifest, flavors: dict[str, Manifest]) -> Placement:
    """The nodes of the flavors, and what admission checks add; the node itself, where Kueue places pods."""
    node_selector: dict[str, str] = {}
    tolerations: list[dict[str, Any]] = []
    for name in dict.fromkeys(assignment.get("flavors", {}).values()):
        spec = flavors[name].get("spec", {})
        node_selector |= spec.get("nodeLabels", {})
        tolerations += spec.get("tolerations", [])
    for check in workload["status"].get("admissionChecks", []):
        for update in check.get("podSetUpdates", []):
            if update["name"] == assignment["name"]:
                node_selector |= update.get("nodeSelector", {})
                tolerations += update.get("tolerations", [])
    placed = "topologyAssignment" in assignment
    return Placement(
        node_selector=node_selector,
        tolerations=tuple(tolerations),
        labels={POD_SET_LABEL: assignment["name"]},
        annotations={WORKLOAD_ANNOTATION: workload["metadata"]["name"]} if placed else {},
        scheduling_gates=(TOPOLOGY_GATE,) if placed else (),
    )


def _reclaimable(workload: Manifest, readiness: Readiness) -> list[Manifest]:
    """Pods that ended well and whose quota others may have; while there is quota, Kueue lets the count only grow."""
    if "admission" not in workload.get("status", {}):
        return []
    said = {each["name"]: each["count"] for each in workload.get("status", {}).get("reclaimablePods", [])}
    counts = {
        name: max(said.get(name, 0), readiness.finished_pods.get(name, 0))
        for name in dict.fromkeys((*said, *readiness.finished_pods))
    }
    return [{"name": name, "count": count} for name, count in counts.items() if count]
