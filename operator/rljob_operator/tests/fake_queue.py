"""A queue that lets jobs in when a test says so."""

from __future__ import annotations

from collections.abc import Sequence

from rljob_operator.cluster.api import Object
from rljob_operator.cluster.kinds import WORKLOAD_KUEUE
from rljob_operator.gangs.provider import ClusterObjectReference, Readiness
from rljob_operator.manifests.context import JobContext, Manifest
from rljob_operator.manifests.metadata import metadata
from rljob_operator.states.situation.facts import Admission, AdmissionState
from rljob_operator.tests.fake_cluster import FakeCluster


class FakeQueue:
    """A gang with one Workload a job, whose status is one word: Admitted, Evicted or Finished."""

    provider = "Kueue"
    release_manager = None
    is_queue = True
    api_versions = (WORKLOAD_KUEUE.api_version,)

    def objects(self, context: JobContext, attempt: int) -> list[Manifest]:
        about = metadata(context, f"rljob-{context.name}", "workload")
        return [{"apiVersion": WORKLOAD_KUEUE.api_version, "kind": WORKLOAD_KUEUE.kind, "metadata": about}]

    def waits_for_all(self, objects: Sequence[Manifest]) -> bool:
        return False

    def renewed(self, objects: Sequence[Manifest], wanted: Sequence[Manifest]) -> list[Manifest]:
        return []

    def references(self, objects: Sequence[Manifest]) -> list[ClusterObjectReference]:
        return []

    def shape(self, context: JobContext, pod: Manifest) -> Manifest:
        return pod

    def shape_guest(self, context: JobContext, pod: Manifest) -> Manifest:
        return pod

    def admission(self, objects: Sequence[Manifest]) -> Admission:
        states = {
            "Admitted": AdmissionState.ADMITTED,
            "Evicted": AdmissionState.EVICTED,
            "Finished": AdmissionState.SPENT,
        }
        word = _word(objects[0]) if objects else ""
        return Admission(states.get(word, AdmissionState.WAITING), f"the queue says {word or 'nothing'}")

    def report(self, objects: Sequence[Manifest], readiness: Readiness) -> list[Manifest]:
        return []

    def release(self, objects: Sequence[Manifest]) -> list[Manifest]:
        return [_saying(item, "Waiting") for item in objects]

    def finish(self, objects: Sequence[Manifest], message: str) -> list[Manifest]:
        return [_saying(item, "Finished") for item in objects]

    @staticmethod
    def is_finished(workload: Object) -> bool:
        return _word(workload) == "Finished"


def let_in(cluster: FakeCluster, workload: Object) -> None:
    """The queue reserves quota."""
    _set(cluster, workload, "Admitted")


def take_back(cluster: FakeCluster, workload: Object) -> None:
    """The queue wants its quota back, from whoever has some."""
    if _word(workload) == "Admitted":
        _set(cluster, workload, "Evicted")


def _set(cluster: FakeCluster, workload: Object, word: str) -> None:
    if not FakeQueue.is_finished(workload):
        metadata = workload["metadata"]
        cluster.edit(WORKLOAD_KUEUE, metadata["namespace"], metadata["name"], status={"word": word})


def _saying(workload: Object, word: str) -> Manifest:
    return {
        "apiVersion": workload["apiVersion"],
        "kind": workload["kind"],
        "metadata": {"name": workload["metadata"]["name"]},
        "status": {"word": word},
    }


def _word(workload: Object) -> str:
    return str((workload.get("status") or {}).get("word", ""))
