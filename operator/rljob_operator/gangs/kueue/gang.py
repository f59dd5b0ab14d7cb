"""`Kueue`: a queue that lets a job in once there is quota for all of it.

made -> QuotaReserved -> Admitted -> pods, PodsReady -> Finished
                            |
                         Evicted -> pods go -> released -> waits again
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from rljob_operator.gangs.kueue.admission import admission_of, assignments, flavors_of
from rljob_operator.gangs.kueue.conditions import holds_in
from rljob_operator.gangs.kueue.status import finished_status, readiness_status, released_status
from rljob_operator.gangs.kueue.workload import API_VERSIONS, PRIORITY_LABEL, QueuePriority, renewal, workload
from rljob_operator.gangs.provider import ClusterObjectReference, Readiness, Ungrouped
from rljob_operator.manifests.context import QUEUE_LABEL, JobContext, Manifest, queue_of
from rljob_operator.states.situation.facts import Admission, AdmissionState

ADMISSION_MANAGER = "kueue-admission"


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Kueue(Ungrouped):
    """`api_version` is one that the cluster serves; `priority` is what the job's priority class is worth there."""

    provider = "Kueue"
    api_versions = API_VERSIONS
    release_manager = ADMISSION_MANAGER
    is_queue = True

    def __init__(
        self,
        api_version: str = API_VERSIONS[0],
        priority: QueuePriority | None = None,
        now: Callable[[], str] = _now,
    ) -> None:
        self._api_version = api_version
        self._priority = priority
        self._now = now

    def objects(self, context: JobContext, attempt: int) -> list[Manifest]:
        return [workload(context, self._api_version, self._priority)]

    def shape_guest(self, context: JobContext, pod: Manifest) -> Manifest:
        """Kueue counts a pod with the label of a queue by itself, and lets it in when there is quota for it."""
        labels = {QUEUE_LABEL: queue_of(context), PRIORITY_LABEL: context.job.metadata.labels.get(PRIORITY_LABEL)}
        pod["metadata"]["labels"] |= {name: value for name, value in labels.items() if value is not None}
        return pod

    def renewed(self, objects: Sequence[Manifest], wanted: Sequence[Manifest]) -> list[Manifest]:
        live = _workload(objects)
        return [] if live is None else _listed(renewal(live, wanted[0]))

    def references(self, objects: Sequence[Manifest]) -> list[ClusterObjectReference]:
        live = _workload(objects)
        return [] if live is None else flavors_of(live)

    def admission(self, objects: Sequence[Manifest]) -> Admission:
        live = _workload(objects)
        if live is None:
            return Admission(AdmissionState.WAITING, "Kueue has no Workload of the job yet")
        return admission_of(live, [item for item in objects if item["kind"] == "ResourceFlavor"])

    def waits_for_all(self, objects: Sequence[Manifest]) -> bool:
        """Only where Kueue itself chooses the nodes; elsewhere the scheduler may place half a gang."""
        live = _workload(objects)
        result = [] if live is None else assignments(live)
        return bool(result) and all("topologyAssignment" in item for item in result)

    def report(self, objects: Sequence[Manifest], readiness: Readiness) -> list[Manifest]:
        live = _unfinished(objects)
        return [] if live is None else _listed(readiness_status(live, readiness, self._now()))

    def release(self, objects: Sequence[Manifest]) -> list[Manifest]:
        live = _workload(objects)
        return [] if live is None or "admission" not in live["status"] else [released_status(live, self._now())]

    def finish(self, objects: Sequence[Manifest], message: str) -> list[Manifest]:
        live = _unfinished(objects)
        return [] if live is None else _listed(finished_status(live, message, self._now()))


def _workload(objects: Sequence[Manifest]) -> Manifest | None:
    return next((item for item in objects if item["kind"] == "Workload"), None)


def _unfinished(objects: Sequence[Manifest]) -> Manifest | None:
    result = _workload(objects)
    return None if result is None or holds_in(result, "Finished") else result


def _listed(manifest: Manifest | None) -> list[Manifest]:
    return [] if manifest is None else [manifest]
