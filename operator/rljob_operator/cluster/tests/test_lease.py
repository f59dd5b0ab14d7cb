"""Leader election: one leader at a time, whatever happens to the API server."""

import asyncio
from typing import Any

import pytest

from rljob_operator.cluster.errors import AlreadyExists, Unavailable, UpdateConflict
from rljob_operator.cluster.kinds import LEASE, ResourceKind
from rljob_operator.cluster.lease import Elector, Holding, LeaseLost
from rljob_operator.tests.virtual_time import now, run


class LeaseServer:
    """The one Lease of an API server; `away` makes it unreachable."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0
        self.away = False
        self.hangs = False
        self.num_reads = 0

    async def get(self, kind: ResourceKind, namespace: str | None, name: str) -> dict[str, Any] | None:
        self.num_reads += 1
        await self._reach("get")
        return self.lease

    async def create(self, kind: ResourceKind, namespace: str | None, body: dict[str, Any]) -> dict[str, Any]:
        await self._reach("create")
        if self.lease is not None:
            raise AlreadyExists("create", LEASE, namespace, "taken")
        return self.store(body)

    async def apply(self, kind: ResourceKind, namespace: str | None, body: dict[str, Any]) -> dict[str, Any]:
        await self._reach("patch")
        if body["metadata"]["resourceVersion"] != str(self.version):
            raise UpdateConflict("patch", LEASE, namespace, "modified")
        return self.store(body)

    @property
    def holder(self) -> str:
        return str(self.lease["spec"]["holderIdentity"]) if self.lease else ""

    def store(self, body: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        self.lease = {**body, "metadata": {**body["metadata"], "resourceVersion": str(self.version)}}
        return self.lease

    async def _reach(self, verb: str) -> None:
        if self.hangs:
            await asyncio.sleep(3600)
        await asyncio.sleep(0.01)
        if self.away:
            raise Unavailable(verb, LEASE, "default", "connection refused")


def elector(leases: LeaseServer, identity: str) -> Elector:
    return Elector(leases, namespace="default", name="rljob-operator", identity=identity)  # type: ignore[arg-type]


def test_of_two_candidates_one_leads_and_the_other_waits_while_it_renews() -> None:
    async def scene() -> None:
        leases = LeaseServer()
        first, second = elector(leases, "one"), elector(leases, "two")
        await first.acquire()
        holding = asyncio.create_task(first.hold())
        waiting = asyncio.create_task(second.acquire())
        await asyncio.sleep(300)
        assert leases.holder == "one"
        assert not waiting.done() and not holding.done()
        holding.cancel()
        waiting.cancel()

    run(scene())


def test_two_candidates_at_the_same_moment_do_not_both_lead() -> None:
    async def scene() -> None:
        leases = LeaseServer()
        candidates = [asyncio.create_task(elector(leases, name).acquire()) for name in ("one", "two", "three")]
        await asyncio.sleep(1)
        assert sum(task.done() for task in candidates) == 1
        for task in candidates:
            task.cancel()

    run(scene())


def test_a_leader_that_dies_is_replaced_after_its_time_and_not_before() -> None:
    async def scene() -> None:
        leases = LeaseServer()
        await elector(leases, "dead").acquire()
        died_at = now()
        second = elector(leases, "two")
        await second.acquire()
        # 15 s after it was first seen, plus at most one pause of 2.4 s
        assert 15 <= now() - died_at <= 15 + 2.4 + 0.1
        assert leases.holder == "two" and leases.lease is not None
        assert leases.lease["spec"]["leaseTransitions"] == 2

    run(scene())


def test_a_lease_given_back_is_taken_at_once() -> None:
    async def scene() -> None:
        leases = LeaseServer()
        first, second = elector(leases, "one"), elector(leases, "two")
        await first.acquire()
        waiting = asyncio.create_task(second.acquire())
        await asyncio.sleep(5)
        await first.release()
        released_at = now()
        await waiting
        assert now() - released_at <= 2.5
        assert leases.holder == "two"

    run(scene())


def test_an_outage_shorter_than_the_deadline_is_survived() -> None:
    async def scene() -> None:
        leases = LeaseServer()
        leader = elector(leases, "one")
        await leader.acquire()
        holding = asyncio.create_task(leader.hold())
        await asyncio.sleep(60)
        leases.away = True
        await asyncio.sleep(5)
        leases.away = False
        await asyncio.sleep(60)
        assert not holding.done()
        holding.cancel()

    run(scene())


@pytest.mark.parametrize("how", ["away", "hangs"])
def test_a_leader_cut_off_ends_before_another_may_lead(how: str) -> None:
    async def scene() -> None:
        leases = LeaseServer()
        leader = elector(leases, "one")
        await leader.acquire()
        holding = asyncio.create_task(leader.hold())
        await asyncio.sleep(60)
        last_renewal = now()
        setattr(leases, how, True)
        with pytest.raises(LeaseLost, match="could not be renewed for 10 s"):
            await holding
        assert now() - last_renewal < 15

    run(scene())


def test_a_leader_whose_lease_was_stolen_ends() -> None:
    async def scene() -> None:
        leases = LeaseServer()
        leader = elector(leases, "one")
        await leader.acquire()
        holding = asyncio.create_task(leader.hold())
        await asyncio.sleep(10)
        assert leases.lease is not None
        leases.lease["spec"]["holderIdentity"] = "thief"
        leases.store(leases.lease)
        with pytest.raises(LeaseLost, match="thief took Lease default/rljob-operator"):
            await holding
        await leader.release()
        assert leases.holder == "thief", "what is not ours is not given back"

    run(scene())


def test_a_leader_renews_with_one_request_and_survives_a_lost_answer_and_a_deleted_lease() -> None:
    async def scene() -> None:
        leases = LeaseServer()
        leader = elector(leases, "one")
        await leader.acquire()
        holding = asyncio.create_task(leader.hold())
        await asyncio.sleep(100)
        assert leases.num_reads == 1, "the one of acquire"
        leases.version += 1  # as if a renewal had been stored and its answer lost
        assert leases.lease is not None
        leases.lease["metadata"]["resourceVersion"] = str(leases.version)
        await asyncio.sleep(100)
        leases.lease = None
        leases.version += 1
        await asyncio.sleep(100)
        assert leases.holder == "one" and not holding.done()
        holding.cancel()

    run(scene())


def test_a_candidate_waits_while_the_server_is_away() -> None:
    async def scene() -> None:
        leases = LeaseServer()
        leases.away = True
        waiting = asyncio.create_task(elector(leases, "one").acquire())
        await asyncio.sleep(100)
        leases.away = False
        await waiting
        assert leases.holder == "one"

    run(scene())


def test_who_may_take_a_lease() -> None:
    held = Holding(holder="one", duration_seconds=15)
    assert held.may_be_taken("one", 0)
    assert not held.may_be_taken("two", 14.9)
    assert held.may_be_taken("two", 15)
    assert Holding(holder="").may_be_taken("two", 0)


def test_times_that_cannot_work_are_refused_with_their_names() -> None:
    with pytest.raises(ValueError, match=r"retrySeconds \(2\) < renewDeadlineSeconds \(20\) < durationSeconds \(15\)"):
        Elector(
            LeaseServer(),  # type: ignore[arg-type]
            namespace="default",
            name="x",
            identity="one",
            renew_deadline_seconds=20,
        )
