"""What Kueue says of a Workload: whether pods may be made, and on which nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rljob_operator.gangs.kueue.conditions import condition_message, holds_in
from rljob_operator.gangs.kueue.workload import GROUP
from rljob_operator.gangs.provider import ClusterObjectReference
from rljob_operator.manifests.context import Manifest, Placement
from rljob_operator.states.situation.facts import Admission, AdmissionState

POD_SET_LABEL = f"{GROUP}/podset"
WORKLOAD_ANNOTATION = f"{GROUP}/workload"
TOPOLOGY_GATE = f"{GROUP}/topology"


def admission_of(workload: Manifest, flavors: Sequence[Manifest]) -> Admission:
    """As of now; `flavors` are those that could be read."""
    holds_quota = "admission" in workload.get("status", {})
    if holds_in(workload, "Evicted") and holds_quota:
        return Admission(AdmissionState.EVICTED, condition_message(workload, "Evicted"))
    if holds_in(workload, "Finished"):
        return Admission(AdmissionState.SPENT, "Kueue's Workload is finished")
    if not holds_in(workload, "Admitted"):
        said = condition_message(workload, "Admitted" if holds_in(workload, "QuotaReserved") else "QuotaReserved")
        return Admission(AdmissionState.WAITING, said or "waiting for quota")
    return _placed(workload, {flavor["metadata"]["name"]: flavor for flavor in flavors})


def flavors_of(workload: Manifest) -> list[ClusterObjectReference]:
    """The flavors of the admission, which say which nodes were meant."""
    result = (name for assignment in assignments(workload) for name in assignment.get("flavors", {}).values())
    return [ClusterObjectReference(workload["apiVersion"], "ResourceFlavor", name) for name in dict.fromkeys(result)]


def assignments(workload: Manifest) -> list[Manifest]:
    """What each worker group got; empty without quota."""
    result: list[Manifest] = workload.get("status", {}).get("admission", {}).get("podSetAssignments", [])
    return result


def _placed(workload: Manifest, flavors: dict[str, Manifest]) -> Admission:
    said = condition_message(workload, "Admitted")
    missing = [flavor.name for flavor in flavors_of(workload) if flavor.name not in flavors]
    if missing:
        message = f"cannot read ResourceFlavor {', '.join(missing)}, which says where pods may run"
        return Admission(AdmissionState.ADMITTED, said, unplaceable=message)
    placements = {assignment["name"]: _placement(workload, assignment, flavors) for assignment in assignments(workload)}
    return Admission(AdmissionState.ADMITTED, said, placements)


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
