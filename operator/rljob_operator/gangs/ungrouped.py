"""No gang scheduler: the operator itself watches whether all pods find a node, and takes them back when they do not."""

from __future__ import annotations

from collections.abc import Sequence

from rljob_operator.gangs.gang import Readiness, Reference
from rljob_operator.manifests.context import JobContext, Manifest
from rljob_operator.states.situation.facts import Admission, AdmissionState


class Ungrouped:
    """Makes no object, asks nobody.  Whatever is no queue stands on it."""

    provider = "None"
    api_versions: tuple[str, ...] = ()
    release_manager: str | None = None
    is_queue = False
    counts_services = True
    """Whether the models beside a job may stand beside this gang: because they are part of what is asked for, or
    because nobody asks.  A group of pods that is made anew with every attempt holds no pod that outlives attempts, and
    what is outside of it is counted nowhere."""

    def waits_for_all(self, objects: Sequence[Manifest]) -> bool:
        return self.provider != "None"

    def renewed(self, objects: Sequence[Manifest], wanted: Sequence[Manifest]) -> list[Manifest]:
        return []

    def objects(self, context: JobContext, attempt: int) -> list[Manifest]:
        return []

    def references(self, objects: Sequence[Manifest]) -> list[Reference]:
        return []

    def shape(self, context: JobContext, pod: Manifest) -> Manifest:
        return pod

    def admission(self, objects: Sequence[Manifest]) -> Admission:
        return Admission(AdmissionState.ADMITTED)

    def report(self, objects: Sequence[Manifest], readiness: Readiness) -> list[Manifest]:
        return []

    def release(self, objects: Sequence[Manifest]) -> list[Manifest]:
        return []

    def finish(self, objects: Sequence[Manifest], message: str) -> list[Manifest]:
        return []
