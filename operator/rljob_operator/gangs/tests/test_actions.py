"""What a queue or a gang scheduler is asked, and what is reported to it, decision by decision."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from rljob_api.v1alpha1.status import RLJobStatus
from rljob_operator.acting.children import Children
from rljob_operator.cluster.api import FIELD_MANAGER, Object
from rljob_operator.cluster.kind_watch import KindWatch
from rljob_operator.cluster.kinds import POD_GROUP_VOLCANO, WORKLOAD_KUEUE, ResourceKind
from rljob_operator.gangs.actions import GangActions, readiness_of
from rljob_operator.gangs.pod_groups import Volcano
from rljob_operator.gangs.provider import GangProvider, Readiness
from rljob_operator.gangs.providers import GangProviders
from rljob_operator.gangs.schedulers import Recent
from rljob_operator.manifests.context import JobContext, Manifest
from rljob_operator.manifests.tests.builders import TWO_GROUPS, UID, make_context
from rljob_operator.states import Decision, QueueAction
from rljob_operator.states.situation.facts import PodFacts, Termination
from rljob_operator.tests.fake_cluster import FakeCluster, names
from rljob_operator.tests.fake_queue import FakeQueue
from rljob_operator.tests.world import Chosen, Clock
from rljob_operator.vocabulary.key import Key

CONTEXT = make_context(TWO_GROUPS)
READINESS = Readiness(pods_ready=True, finished_pods={"train": 1})


class Queue(FakeQueue):
    """Writes down for which attempts it was asked, and what was reported to it; its manager of releases is `theirs`."""

    release_manager = "theirs"

    def __init__(self) -> None:
        self.attempts: list[int] = []
        self.announced: list[tuple[Any, ...]] = []

    def objects(self, context: JobContext, attempt: int) -> list[Manifest]:
        self.attempts.append(attempt)
        return super().objects(context, attempt)

    def renewed(self, objects: Sequence[Manifest], wanted: Sequence[Manifest]) -> list[Manifest]:
        return [
            {**item, "spec": {"queueName": "renewed"}} for item in wanted if item["metadata"]["name"] in names(objects)
        ]

    def report(self, objects: Sequence[Manifest], readiness: Readiness) -> list[Manifest]:
        self.announced.append(("report", names(objects), readiness))
        return super().release(objects)

    def release(self, objects: Sequence[Manifest]) -> list[Manifest]:
        self.announced.append(("release", names(objects)))
        return super().release(objects)

    def finish(self, objects: Sequence[Manifest], message: str) -> list[Manifest]:
        self.announced.append(("finish", names(objects), message))
        return super().finish(objects, message)


class Cluster(FakeCluster):
    """Writes down who wrote a status."""

    def __init__(self) -> None:
        super().__init__(Clock())
        self.managers: list[str] = []

    async def apply_status(
        self, kind: ResourceKind, namespace: str | None, body: Object, *, manager: str = FIELD_MANAGER
    ) -> Object:
        self.managers.append(manager)
        return await super().apply_status(kind, namespace, body, manager=manager)


class Workloads(KindWatch):
    """As a watch tells of them that is never late."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster

    @property
    def kind(self) -> ResourceKind:
        return WORKLOAD_KUEUE

    def of(self, key: Key) -> list[Object]:
        return self._cluster.all(WORKLOAD_KUEUE, key.namespace, f"rljob.dev/job={key.name}")


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def act(cluster: Cluster, gang: GangProvider, queue: QueueAction, attempt: int = 1, **decided: Any) -> None:
    """Do what was decided; the requests that this took are the cluster's last."""
    cluster.requests.clear()
    gangs = GangProviders(cluster, Recent(cluster, Clock()), Chosen(lambda context: gang), Workloads(cluster))
    status = RLJobStatus(attempt=attempt, phase=decided.pop("phase", "Running"))
    decision = Decision(status, queue=queue, **decided)
    actions = GangActions(cluster, gangs, Children(cluster, "team", "small", UID))
    asyncio.run(actions.act(CONTEXT, decision, READINESS))


def put(cluster: Cluster, kind: ResourceKind, manifest: Manifest) -> None:
    cluster.put(kind, "team", {**manifest, "metadata": {**manifest["metadata"]}})


def queued(cluster: Cluster) -> Queue:
    """A queue that has the job's Workload."""
    gang = Queue()
    put(cluster, WORKLOAD_KUEUE, gang.objects(CONTEXT, 1)[0])
    gang.attempts.clear()
    return gang


@pytest.mark.parametrize(("attempt", "asked"), [(0, 1), (1, 1), (3, 3)])
def test_a_job_that_holds_its_place_asks_for_one_once(cluster: Cluster, attempt: int, asked: int) -> None:
    gang = Queue()
    act(cluster, gang, QueueAction.HOLD, attempt)
    (made,) = cluster.all(WORKLOAD_KUEUE)
    assert set(gang.attempts) == {asked} and "spec" in made, "what was just made is looked at as well"
    assert gang.announced == [("report", ["rljob-small"], READINESS)]
    act(cluster, gang, QueueAction.HOLD, attempt)
    assert [request for request in cluster.requests if request[0] == "create"] == []


def test_what_changed_of_its_wishes_is_written(cluster: Cluster) -> None:
    act(cluster, queued(cluster), QueueAction.HOLD)
    (live,) = cluster.all(WORKLOAD_KUEUE)
    assert live["spec"] == {"queueName": "renewed"} and cluster.managers == [FIELD_MANAGER]


def test_a_place_is_given_back_in_the_queues_own_name(cluster: Cluster) -> None:
    gang = queued(cluster)
    act(cluster, gang, QueueAction.RELEASE)
    assert gang.announced == [("release", ["rljob-small"])] and cluster.managers == ["theirs"]


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_an_end_is_reported_in_our_part(cluster: Cluster, phase: str) -> None:
    gang = queued(cluster)
    act(cluster, gang, QueueAction.FINISH, phase=phase)
    assert gang.announced == [("finish", ["rljob-small"], f"the job has {phase.lower()}")]
    assert cluster.managers == [FIELD_MANAGER]


def test_nothing_is_reported_to_a_queue_where_nothing_was_decided(cluster: Cluster) -> None:
    gang = queued(cluster)
    before = cluster.all(WORKLOAD_KUEUE)
    act(cluster, gang, QueueAction.NONE)
    assert gang.announced == [] and cluster.all(WORKLOAD_KUEUE) == before


def test_a_job_that_leaves_takes_what_it_asked_for_with_it(cluster: Cluster) -> None:
    gang = queued(cluster)
    act(cluster, gang, QueueAction.LEAVE)
    assert not cluster.all(WORKLOAD_KUEUE) and gang.announced == []


def test_what_it_asked_while_it_had_another_gang_goes_as_well(cluster: Cluster) -> None:
    queued(cluster)
    act(cluster, Volcano(), QueueAction.HOLD)
    assert len(cluster.all(WORKLOAD_KUEUE)) == 1
    act(cluster, Volcano(), QueueAction.LEAVE)
    assert not cluster.all(WORKLOAD_KUEUE)
    act(cluster, Volcano(), QueueAction.LEAVE)
    assert not [request for request in cluster.requests if request[0] == "delete"], "there is nothing more"


def test_a_group_is_made_with_the_pods_of_its_attempt(cluster: Cluster) -> None:
    act(cluster, Volcano(), QueueAction.HOLD, attempt=1)
    assert cluster.requests == [], "a scheduler is not a queue"
    act(cluster, Volcano(), QueueAction.HOLD, attempt=1, creates_pods=True)
    assert cluster.requests == [("create", "PodGroup", "small-a1")], "before the first attempt there was none"


@pytest.mark.parametrize("attempt", [2, 3])
def test_the_group_of_the_attempt_before_asks_for_no_room(cluster: Cluster, attempt: int) -> None:
    for older in range(1, attempt):
        put(cluster, POD_GROUP_VOLCANO, Volcano().objects(CONTEXT, older)[0])
    act(cluster, Volcano(), QueueAction.HOLD, attempt)
    assert len(cluster.all(POD_GROUP_VOLCANO)) == attempt - 1, "it stays until the next is made"
    act(cluster, Volcano(), QueueAction.HOLD, attempt, creates_pods=True)
    assert names(cluster.all(POD_GROUP_VOLCANO)) == [
        *(f"small-a{index}" for index in range(1, attempt - 1)),
        f"small-a{attempt}",
    ]


def test_a_queues_objects_outlive_attempts(cluster: Cluster) -> None:
    act(cluster, queued(cluster), QueueAction.HOLD, attempt=2, creates_pods=True)
    assert len(cluster.all(WORKLOAD_KUEUE)) == 1


def test_the_group_goes_when_the_job_wants_to_run_no_more(cluster: Cluster) -> None:
    put(cluster, POD_GROUP_VOLCANO, Volcano().objects(CONTEXT, 2)[0])
    act(cluster, Volcano(), QueueAction.LEAVE, attempt=2)
    assert not cluster.all(POD_GROUP_VOLCANO)


def test_a_job_that_never_began_leaves_as_its_first_attempt(cluster: Cluster) -> None:
    put(cluster, POD_GROUP_VOLCANO, Volcano().objects(CONTEXT, 1)[0])
    act(cluster, Volcano(), QueueAction.LEAVE, attempt=0)
    assert not cluster.all(POD_GROUP_VOLCANO)


def done(group: str, attempt: int, code: int = 0) -> PodFacts:
    name = f"small-{group}-{attempt}-{code}"
    return PodFacts(name=name, uid=name, group=group, attempt=attempt, ended=Termination("worker", code, "", ""))


def test_a_queue_hears_how_far_the_attempt_is() -> None:
    seen = [done("train", 2), done("rollout", 2), done("rollout", 2), done("rollout", 2, 75), done("train", 1)]
    running = replace(seen[0], ended=None)
    ready = Decision(RLJobStatus(attempt=2, ready_time="2026-01-01T00:00:00Z"))
    assert readiness_of(ready, [*seen, running]) == Readiness(True, {"train": 1, "rollout": 2})
    assert readiness_of(Decision(RLJobStatus(attempt=2)), []) == Readiness(False, {})
