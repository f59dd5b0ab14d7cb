"""What many jobs look at is read once a minute."""

import asyncio

import pytest

from rljob_operator.cluster.errors import Forbidden
from rljob_operator.cluster.kinds import PRIORITY_CLASS
from rljob_operator.gangs.recent import Recent
from rljob_operator.tests.fake_cluster import FakeCluster
from rljob_operator.tests.world import Clock


def test_an_object_is_read_again_after_a_minute() -> None:
    clock = Clock()
    cluster = FakeCluster(clock)
    recent = Recent(cluster, clock)

    def value() -> object:
        found = asyncio.run(recent.get(PRIORITY_CLASS, "high"))
        return None if found is None else found["value"]

    assert value() is None
    cluster.put(PRIORITY_CLASS, None, {"metadata": {"name": "high"}, "value": 7})
    clock.now += 59
    assert value() is None and len(cluster.requests) == 1
    clock.now += 1
    assert value() == 7 and len(cluster.requests) == 2


def test_a_refusal_is_not_asked_for_at_every_look() -> None:
    clock = Clock()
    cluster = FakeCluster(clock)
    cluster.refuse = lambda verb, kind, name: Forbidden(verb, kind, None, "no")
    recent = Recent(cluster, clock)
    for _ in range(3):
        with pytest.raises(Forbidden):
            asyncio.run(recent.get(PRIORITY_CLASS, "high"))
    assert len(cluster.requests) == 1
