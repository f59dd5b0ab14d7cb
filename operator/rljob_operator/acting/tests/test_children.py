"""Children of one job: made as they should be, put right, and never touched where they are somebody else's."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rljob_operator.acting.children import Children, NotOurs, covers
from rljob_operator.cluster.api import Object
from rljob_operator.cluster.errors import AlreadyExists, Forbidden
from rljob_operator.cluster.kinds import CONFIG_MAP, POD, RLJOB, SECRET, SERVICE, ResourceKind
from rljob_operator.states.situation.situation import Deletion
from rljob_operator.tests.fake_cluster import FakeCluster, names

UID = "uid-job"
OURS = [{"kind": "RLJob", "name": "small", "uid": UID, "controller": True}]
PREDECESSORS = [{"kind": "RLJob", "name": "small", "uid": "uid-old", "controller": True}]
OTHERS = {
    "nobody's": [],
    "not in control": [{**OURS[0], "controller": False}],
    "another job's": [{**OURS[0], "name": "other", "uid": "uid-other"}],
    "a predecessor's": PREDECESSORS,
}


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster(lambda: 1_800_000_000.0)


def children(cluster: FakeCluster) -> Children:
    return Children(cluster, "team", "small", UID)


def manifest(kind: ResourceKind, name: str = "x", owners: list[Object] = OURS, **fields: Any) -> Object:
    metadata = {"name": name, "namespace": "team", "ownerReferences": owners}
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, **fields}


def verbs(cluster: FakeCluster) -> list[str]:
    return [verb for verb, _, _ in cluster.requests]


def test_what_is_missing_is_made(cluster: FakeCluster) -> None:
    made = asyncio.run(children(cluster).make(manifest(SERVICE, spec={"a": 1})))
    assert made["metadata"]["uid"] and verbs(cluster) == ["create"]


def test_what_differs_is_put_right_and_what_others_added_stays(cluster: FakeCluster) -> None:
    cluster.put(SERVICE, "team", manifest(SERVICE, spec={"a": 2, "clusterIP": "None"}))
    made = asyncio.run(children(cluster).make(manifest(SERVICE, spec={"a": 1})))
    assert made["spec"] == {"a": 1, "clusterIP": "None"}
    assert verbs(cluster) == ["create", "get", "patch"]


def test_what_is_as_it_should_be_costs_no_write(cluster: FakeCluster) -> None:
    cluster.put(SERVICE, "team", manifest(SERVICE, spec={"a": 1, "clusterIP": "None"}))
    assert asyncio.run(children(cluster).make(manifest(SERVICE, spec={"a": 1})))["spec"]["a"] == 1
    assert verbs(cluster) == ["create", "get"]


def test_healing_tells_whether_it_was_needed(cluster: FakeCluster) -> None:
    wanted = manifest(SERVICE, spec={"a": 1})
    assert asyncio.run(children(cluster).heal(wanted))
    assert not asyncio.run(children(cluster).heal(wanted))
    cluster.edit(SERVICE, "team", "x", spec={"a": 2})
    assert asyncio.run(children(cluster).heal(wanted))
    assert cluster.all(SERVICE)[0]["spec"] == {"a": 1}


def test_what_was_made_once_stays_as_it_is(cluster: FakeCluster) -> None:
    asyncio.run(children(cluster).make_once(manifest(SECRET, data={"token": "first"})))
    asyncio.run(children(cluster).make_once(manifest(SECRET, data={"token": "second"})))
    assert cluster.all(SECRET)[0]["data"] == {"token": "first"}


def test_a_pod_that_is_there_is_taken_and_never_changed(cluster: FakeCluster) -> None:
    first = asyncio.run(children(cluster).make_pod(manifest(POD, spec={"nodeName": "a"})))
    again = asyncio.run(children(cluster).make_pod(manifest(POD, spec={"nodeName": "b"})))
    assert again["metadata"]["uid"] == first["metadata"]["uid"] and again["spec"] == {"nodeName": "a"}


def test_a_name_that_was_taken_and_is_free_again_is_tried_another_time(cluster: FakeCluster) -> None:
    """Between the answer and the look somebody deleted it."""

    def taken(verb: str, kind: ResourceKind, name: str) -> AlreadyExists | None:
        return AlreadyExists(verb, kind, "team", "taken") if verb == "create" else None

    cluster.refuse = taken
    with pytest.raises(AlreadyExists):
        asyncio.run(children(cluster).make(manifest(SERVICE)))
    with pytest.raises(AlreadyExists):
        asyncio.run(children(cluster).make_pod(manifest(POD)))


@pytest.mark.parametrize("whose", OTHERS)
@pytest.mark.parametrize("way", ["make", "heal", "make_once", "make_pod"])
def test_what_is_somebody_elses_is_neither_taken_nor_changed(cluster: FakeCluster, way: str, whose: str) -> None:
    kind = POD if way == "make_pod" else CONFIG_MAP
    theirs = cluster.put(kind, "team", manifest(kind, owners=OTHERS[whose], spec={"containers": []}, data={"a": "1"}))
    with pytest.raises(NotOurs) as caught:
        asyncio.run(getattr(children(cluster), way)(manifest(kind, spec={"containers": []}, data={"a": "2"})))
    owner = "a deleted job of the same name" if whose == "a predecessor's" else "somebody else"
    assert str(caught.value) == f"{kind.kind} x in namespace team belongs to {owner}; delete or rename it"
    assert caught.value.is_predecessors == (whose == "a predecessor's")
    assert cluster.all(kind) == [theirs]


@pytest.mark.parametrize("whose", OTHERS)
def test_what_is_somebody_elses_is_not_deleted(cluster: FakeCluster, whose: str) -> None:
    theirs = cluster.put(CONFIG_MAP, "team", manifest(CONFIG_MAP, owners=OTHERS[whose]))
    asyncio.run(children(cluster).delete(theirs))
    asyncio.run(children(cluster).delete_of(CONFIG_MAP, {"metadata": theirs["metadata"]}))
    assert cluster.all(CONFIG_MAP) == [theirs] and verbs(cluster) == []


def test_a_namesake_of_what_is_to_be_deleted_stays(cluster: FakeCluster) -> None:
    seen = cluster.put(CONFIG_MAP, "team", manifest(CONFIG_MAP))
    cluster.remove(CONFIG_MAP, seen)
    namesake = cluster.put(CONFIG_MAP, "team", manifest(CONFIG_MAP))
    asyncio.run(children(cluster).delete(seen))
    assert cluster.all(CONFIG_MAP) == [namesake]
    asyncio.run(children(cluster).delete_of(CONFIG_MAP, namesake))
    assert cluster.all(CONFIG_MAP) == []


def test_what_is_ours_goes_by_its_own_kind(cluster: FakeCluster) -> None:
    for kind in (CONFIG_MAP, SERVICE):
        cluster.put(kind, "team", manifest(kind))
    asyncio.run(children(cluster).delete(cluster.all(SERVICE)[0]))
    assert names(cluster.all(CONFIG_MAP)) == ["x"] and not cluster.all(SERVICE)


def test_pods_go_by_name_and_uid_with_the_grace_they_are_given(cluster: FakeCluster) -> None:
    for name in ("a", "b", "c"):
        cluster.put(POD, "team", manifest(POD, name, spec={"nodeName": "node1"}))
    uids = {item["metadata"]["name"]: item["metadata"]["uid"] for item in cluster.all(POD)}
    deletions = [Deletion("a", uids["a"], 30), Deletion("b", uids["b"], 0), Deletion("c", "uid-of-another", 0)]
    asyncio.run(children(cluster).delete_pods(deletions))
    left = {item["metadata"]["name"]: item["metadata"] for item in cluster.all(POD)}
    assert left["a"]["deletionGracePeriodSeconds"] == 30
    assert "b" not in left and "deletionTimestamp" not in left["c"]


def test_the_job_itself_goes_only_as_the_one_that_was_looked_at(cluster: FakeCluster) -> None:
    cluster.put(RLJOB, "team", {"metadata": {"name": "small"}})
    asyncio.run(children(cluster).delete_job(RLJOB))
    (job,) = cluster.all(RLJOB)
    asyncio.run(Children(cluster, "team", "small", job["metadata"]["uid"]).delete_job(RLJOB))
    assert names(cluster.all(RLJOB)) == []


def test_a_secret_that_may_not_be_read_is_believed_to_be_ours(cluster: FakeCluster) -> None:
    cluster.refuse = lambda verb, kind, name: Forbidden(verb, kind, "team", "no") if verb == "get" else None
    assert asyncio.run(children(cluster).existing(SECRET, "x")) is None
    with pytest.raises(Forbidden):
        asyncio.run(children(cluster).existing(CONFIG_MAP, "x"))


@pytest.mark.parametrize(
    ("result", "wanted", "is_covered"),
    [
        ({"a": 1, "b": 2}, {"a": 1}, True),
        ({"a": 1}, {"a": 2}, False),
        ({}, {"a": 1}, False),
        ({"a": {"b": [1, {"c": 2, "d": 3}]}}, {"a": {"b": [1, {"c": 2}]}}, True),
        ({"a": [1, 2]}, {"a": [1]}, False),
        ({"a": [2, 1]}, {"a": [1, 2]}, False),
        ({"a": "x"}, {"a": {"b": 1}}, False),
        ({"a": {"b": 1}}, {"a": [1]}, False),
    ],
)
def test_what_covers_what_is_wanted(result: Object, wanted: Object, is_covered: bool) -> None:
    assert covers(result, wanted) is is_covered
