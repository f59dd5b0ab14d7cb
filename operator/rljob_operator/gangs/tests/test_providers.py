"""What is asked of the cluster about a job's place, and what is made of the answers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from rljob_operator.cluster.api import Object
from rljob_operator.cluster.kind_watch import KindWatch
from rljob_operator.cluster.kinds import RESOURCE_FLAVOR, WORKLOAD_KUEUE, ResourceKind
from rljob_operator.gangs.kueue.gang import Kueue
from rljob_operator.gangs.pod_groups import Volcano
from rljob_operator.gangs.provider import GangProvider, Ungrouped
from rljob_operator.gangs.providers import GangProviders, drop_pod_sets
from rljob_operator.gangs.schedulers import Recent, Schedulers
from rljob_operator.gangs.selection import Unserved
from rljob_operator.manifests.context import JobContext, Manifest
from rljob_operator.manifests.tests.builders import UID, make_context
from rljob_operator.states import Refusal, Situation
from rljob_operator.states.situation.conditions import Reason
from rljob_operator.states.situation.facts import AdmissionState
from rljob_operator.states.tests.builders import pending
from rljob_operator.tests.fake_cluster import FakeCluster, names
from rljob_operator.tests.fake_queue import FakeQueue
from rljob_operator.tests.world import Clock
from rljob_operator.vocabulary.key import Key

KEY, CONTEXT = Key("team", "small"), make_context()
MISSING = "install Volcano"


class Queue(FakeQueue):
    """Writes down for which attempts it was asked."""

    def __init__(self) -> None:
        self.attempts: list[int] = []

    def objects(self, context: JobContext, attempt: int) -> list[Manifest]:
        self.attempts.append(attempt)
        return super().objects(context, attempt)

    def waits_for_all(self, objects: Any) -> bool:
        return bool(objects)


class Learning(Schedulers):
    """Chooses what it was given, once it has learned; None: the cluster lacks what the job needs."""

    def __init__(self, gang: GangProvider | None) -> None:
        self._gang = gang
        self.num_learned = 0

    async def learn(self, context: JobContext) -> None:
        self.num_learned += 1

    def choose(self, context: JobContext) -> GangProvider:
        if self._gang is None:
            raise Unserved(MISSING)
        return self._gang


class Watch(KindWatch):
    """Tells of what it was given; None: there is no watch."""

    def __init__(self, objects: list[Object] | None, kind: ResourceKind | None = WORKLOAD_KUEUE) -> None:
        self._kind = kind
        self._announced = objects

    @property
    def kind(self) -> ResourceKind | None:
        return self._kind

    def of(self, key: Key) -> list[Object] | None:
        return self._announced if key == KEY else []


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster(Clock())


def workload(word: str = "Admitted", uid: str = UID) -> Object:
    """A Workload of a job, as an item of a list, which does not say its kind."""
    made = FakeQueue().objects(CONTEXT, 1)[0]
    owner = {**made["metadata"]["ownerReferences"][0], "uid": uid}
    return {"metadata": {**made["metadata"], "ownerReferences": [owner]}, "status": {"word": word}}


def admitted(*more: str, **assignment: Any) -> Object:
    """As Kueue writes it."""
    conditions = [{"type": item, "status": "True", "message": ""} for item in ("QuotaReserved", "Admitted", *more)]
    admission = {"podSetAssignments": [{"name": "train", **assignment}]}
    return {**workload(), "status": {"conditions": conditions, "admission": admission}}


def put(cluster: FakeCluster, body: Object) -> None:
    cluster.put(WORKLOAD_KUEUE, "team", {"apiVersion": WORKLOAD_KUEUE.api_version, "kind": "Workload", **body})


def look(
    cluster: FakeCluster, gang: GangProvider | None, watch: Watch, situation: Situation, planned: bool = True
) -> Situation:
    gangs = GangProviders(cluster, Recent(cluster, Clock()), Learning(gang), watch)
    return asyncio.run(gangs.look(KEY, UID, CONTEXT if planned else None, situation))


@pytest.mark.parametrize(
    ("word", "state"),
    [("Admitted", AdmissionState.ADMITTED), ("Evicted", AdmissionState.EVICTED), ("", AdmissionState.WAITING)],
)
def test_what_a_watch_tells_costs_no_request(cluster: FakeCluster, word: str, state: AdmissionState) -> None:
    result = look(cluster, Queue(), Watch([workload(word)]), pending(phase="Running", attempt=1))
    assert (result.admission.state, result.has_queue, result.waits_for_all) == (state, True, True)
    assert cluster.requests == []


@pytest.mark.parametrize(("attempt", "asked"), [(0, 1), (1, 1), (4, 4)])
def test_objects_are_those_of_the_attempt(cluster: FakeCluster, attempt: int, asked: int) -> None:
    gang = Queue()
    look(cluster, gang, Watch(None), pending(attempt=attempt))
    assert set(gang.attempts) == {asked}


@pytest.mark.parametrize(("phase", "is_asked"), [("Running", True), ("Starting", True), ("Pending", False)])
def test_a_place_that_a_watch_does_not_tell_of_is_asked_for_only_where_a_gang_runs(
    cluster: FakeCluster, phase: Any, is_asked: bool
) -> None:
    put(cluster, workload())
    result = look(cluster, Queue(), Watch([]), pending(phase=phase, attempt=1))
    assert bool(cluster.requests) is is_asked and result.has_queue
    assert result.admission.state is (AdmissionState.ADMITTED if is_asked else AdmissionState.WAITING)


@pytest.mark.parametrize("watch", [Watch(None), Watch([workload()], kind=None)], ids=["no watch yet", "no Kueue"])
def test_without_a_watch_the_server_is_asked(cluster: FakeCluster, watch: Watch) -> None:
    put(cluster, workload())
    result = look(cluster, Queue(), watch, pending(attempt=1))
    assert cluster.requests == [("get", "Workload", "rljob-small")]
    assert result.admission.state is AdmissionState.ADMITTED


def test_the_place_of_somebody_else_is_none(cluster: FakeCluster) -> None:
    result = look(cluster, Queue(), Watch([workload(uid="other")]), pending(attempt=1))
    assert result.admission.state is AdmissionState.WAITING and not result.waits_for_all


@pytest.mark.parametrize(("gang", "waits"), [(Volcano(), True), (Ungrouped(), False)])
def test_a_scheduler_of_gangs_is_asked_nothing(cluster: FakeCluster, gang: GangProvider, waits: bool) -> None:
    result = look(cluster, gang, Watch([workload("Evicted")]), pending(attempt=1))
    assert (result.waits_for_all, result.has_queue, result.admission.state) == (waits, False, AdmissionState.ADMITTED)
    assert cluster.requests == []


def test_what_the_cluster_lacks_is_a_refusal_unless_there_is_one(cluster: FakeCluster) -> None:
    result = look(cluster, None, Watch([]), pending())
    assert result.refusal == Refusal(Reason.SCHEDULER_MISSING, MISSING)
    known = Refusal(Reason.CODE_MISSING, "no code")
    assert look(cluster, None, Watch([]), replace(pending(), refusal=known)).refusal == known


def unplanned(cluster: FakeCluster, watch: Watch) -> Object | None:
    gangs = GangProviders(cluster, Recent(cluster, Clock()), Learning(None), watch)
    return asyncio.run(gangs.unplanned(KEY, UID))


def test_of_a_job_that_can_no_longer_be_planned_its_workload_is_found(cluster: FakeCluster) -> None:
    result = unplanned(cluster, Watch([workload(uid="other"), workload()]))
    assert result is not None and (result["kind"], result["apiVersion"]) == ("Workload", WORKLOAD_KUEUE.api_version)
    assert result["metadata"]["ownerReferences"][0]["uid"] == UID
    assert cluster.requests == []


@pytest.mark.parametrize(
    "watch",
    [Watch([]), Watch([workload(uid="other")]), Watch([workload()], kind=None)],
    ids=["none", "others", "no Kueue"],
)
def test_where_there_is_none_nothing_is_found_and_nobody_asked(cluster: FakeCluster, watch: Watch) -> None:
    put(cluster, workload())
    assert unplanned(cluster, watch) is None and cluster.requests == []
    situation = pending(attempt=1)
    assert look(cluster, None, watch, situation, planned=False) == situation


def test_without_a_watch_it_is_asked_for_by_name(cluster: FakeCluster) -> None:
    assert unplanned(cluster, Watch(None)) is None
    put(cluster, workload())
    result = unplanned(cluster, Watch(None))
    assert result is not None and names([result]) == ["rljob-small"]


def test_a_job_that_can_no_longer_be_planned_may_still_be_evicted(cluster: FakeCluster) -> None:
    live = admitted("Evicted")
    result = look(cluster, Queue(), Watch([live]), pending(phase="Running", attempt=1), planned=False)
    assert result.has_queue and result.admission.state is AdmissionState.EVICTED
    result = look(cluster, None, Watch([live]), pending(phase="Running", attempt=1))
    assert result.refusal is not None and result.admission.state is AdmissionState.EVICTED


def test_what_a_place_refers_to_is_read_with_it(cluster: FakeCluster) -> None:
    about = {"apiVersion": RESOURCE_FLAVOR.api_version, "kind": RESOURCE_FLAVOR.kind, "metadata": {"name": "spot"}}
    cluster.put(RESOURCE_FLAVOR, None, {**about, "spec": {"nodeLabels": {"pool": "spot"}}})
    gang = Kueue(WORKLOAD_KUEUE.api_version)
    result = look(cluster, gang, Watch([admitted(flavors={"cpu": "spot"})]), pending(attempt=1))
    assert result.admission.placements["train"].node_selector == {"pool": "spot"}
    assert cluster.requests == [("get", "ResourceFlavor", "spot")]


def test_before_it_chooses_it_learns(cluster: FakeCluster) -> None:
    chooser = Learning(Ungrouped())
    gangs = GangProviders(cluster, Recent(cluster, Clock()), chooser, Watch([]))
    asyncio.run(gangs.look(KEY, UID, CONTEXT, pending()))
    assert chooser.num_learned == 1 and gangs.of(CONTEXT).provider == "None"


def test_where_the_cluster_lacks_its_gang_there_is_nothing_to_write_to(cluster: FakeCluster) -> None:
    gangs = GangProviders(cluster, Recent(cluster, Clock()), Learning(None), Watch([]))
    assert isinstance(gangs.of(CONTEXT), Ungrouped)


def test_what_was_asked_for_is_not_kept() -> None:
    item = {"metadata": {"name": "x", "managedFields": [{}]}, "spec": {"podSets": [{}], "queueName": "q"}, "status": {}}
    drop_pod_sets(item)
    assert item == {"metadata": {"name": "x"}, "spec": {"queueName": "q"}, "status": {}}
