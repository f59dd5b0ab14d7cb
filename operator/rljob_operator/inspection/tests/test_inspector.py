"""What is read of a job, and of whom: one look, on a fake cluster."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from random import Random
from typing import Any
from uuid import UUID

import pytest

from rljob_api.catalogue.profiles import DEFAULT, AcceleratorProfile
from rljob_operator.cluster.api import Object
from rljob_operator.cluster.kinds import POD, RLJOB
from rljob_operator.inspection.inspector import JobInspector
from rljob_operator.inspection.job_store import JobMemory, ObservedJob
from rljob_operator.states import Situation
from rljob_operator.states.tests.builders import alive, with_groups
from rljob_operator.tests.fake_cluster import LiveCache
from rljob_operator.tests.world import KEY, TWO_PODS, WatchedRayServices, World, ended, running


@pytest.fixture
def world() -> World:
    return World()


def inspector_of(world: World) -> JobInspector:
    return JobInspector(
        world.cluster,
        LiveCache(world.cluster),
        world.progress,
        world.rules,
        world.gangs(),
        WatchedRayServices(world),
        world.clock,
    )


def unready(**more: Any) -> Object:
    status = running(**more)
    status["conditions"] = [{"type": "Ready", "status": "False"}]
    return status


@pytest.mark.parametrize(("address", "asked"), [("10.0.0.7", "10.0.0.7:9400"), ("fd00::7", "[fd00::7]:9400")])
def test_the_lead_pod_is_asked_at_its_address(world: World, address: str, asked: str) -> None:
    world.submit()
    world.settle()
    world.run_pods(podIP=address)
    world.settle()
    assert world.progress.asked == [asked]


@pytest.mark.parametrize("status", [running(podIP=""), unready(), ended(0)], ids=["no address", "not ready", "done"])
def test_a_lead_pod_that_cannot_answer_is_not_asked(world: World, status: Object) -> None:
    world.to_running(**TWO_PODS)
    assert world.progress.followed == {KEY}
    world.set_pod(world.pods[1], status)
    world.settle()
    assert world.progress.followed == {KEY}, "the other is none"
    world.set_pod(world.pods[0], status)
    world.settle()
    assert world.progress.followed == set()


def test_pods_of_a_predecessor_are_seen_among_those_of_others(world: World) -> None:
    world.to_running()
    world.cluster.remove(RLJOB, world.job)
    foreign = {"metadata": {"name": "another", "labels": {"rljob.dev/job": KEY.name}}, "spec": {}}
    world.cluster.put(POD, KEY.namespace, foreign)
    world.submit()
    world.settle()
    assert world.reason("Scheduled") == ("False", "PredecessorEnding")


def asked_for(world: World, situation: Situation) -> list[str]:
    """Missing pods that the API server is asked for by name."""
    world.submit()
    job = ObservedJob.read(KEY, world.job)
    world.cluster.requests.clear()
    asyncio.run(inspector_of(world).with_all_pods(job, situation, JobMemory()))
    return [name for verb, kind, name in world.cluster.requests if (verb, kind) == ("get", "Pod")]


def test_a_gang_that_vanished_is_not_asked_for_pod_by_pod(world: World) -> None:
    assert len(asked_for(world, with_groups(alive(), train=1000))) == 16


@pytest.mark.parametrize(
    ("last", "is_asked"),
    [
        ({"status": running()}, True),
        ({}, True),
        ({"status": {"phase": "Failed"}}, False),
        ({"status": {"phase": "Succeeded"}}, False),
        ({"deletionTimestamp": "2027-01-15T08:00:00Z", "status": running()}, False),
    ],
    ids=["ran", "new", "failed", "done", "was being deleted"],
)
def test_a_pod_whose_last_state_explains_that_it_went_is_not_asked_for(
    world: World, last: dict[str, Any], is_asked: bool
) -> None:
    marks = {name: value for name, value in last.items() if name == "deletionTimestamp"}
    body = {"metadata": {"name": "small-train-0-a1", **marks}, "spec": {}}
    pod = world.cluster.put(POD, KEY.namespace, {**body, "status": last["status"]} if "status" in last else body)
    world.cluster.remove(POD, pod, grace_seconds=0)
    assert asked_for(world, alive(overrides=())) == (["small-train-0-a1"] if is_asked else [])


def test_pauses_differ_between_jobs_that_failed_at_once(world: World) -> None:
    world.submit()
    body, memory, inspector = world.job, JobMemory(), inspector_of(world)
    chances, uids = [], [str(UUID(int=bits)) for bits in map(Random(0).getrandbits, [128] * 64)]
    for uid in uids:
        job = ObservedJob.read(KEY, {**body, "metadata": {**body["metadata"], "uid": uid}})
        situation, _ = asyncio.run(inspector.inspect(job, memory))
        chances.append(situation.chance)
    assert min(chances) >= 0 and max(chances) < 1
    assert min(chances) < 0.1 and max(chances) > 0.9
    assert chances[3] == zlib.crc32(f"{uids[3]}/0".encode()) / 2**32, "the same whoever looks"


def test_a_situation_is_that_of_the_job_that_was_read(world: World) -> None:
    world.to_running(**TWO_PODS)
    situation, context = asyncio.run(inspector_of(world).inspect(ObservedJob.read(KEY, world.job), JobMemory()))
    assert context is not None and context.plan_hash == world.status.plan_hash
    assert (situation.name, situation.status, situation.now) == ("small", world.status, world.clock.now)
    assert (situation.generation, situation.lead_group, situation.spec_changes) == (1, "train", "")
    assert situation.plan is not None and situation.plan.config_map == world.status.plan_config_map
    assert [pod.is_ready for pod in situation.pods] == [True, True] and not situation.is_predecessor_ending


def test_the_plan_that_runs_is_read_once(world: World) -> None:
    world.to_running(**TWO_PODS)
    inspector, memory, job = inspector_of(world), JobMemory(), ObservedJob.read(KEY, world.job)
    world.cluster.requests.clear()
    for _ in range(2):
        asyncio.run(inspector.inspect(job, memory))
    plans = [name for verb, kind, name in world.cluster.requests if (verb, kind) == ("get", "ConfigMap")]
    assert plans == [world.status.plan_config_map]


class Watched(Mapping[str, AcceleratorProfile]):
    """Profiles, and how often one was looked up."""

    def __init__(self) -> None:
        self.num_looks = 0

    def __getitem__(self, name: str) -> AcceleratorProfile:
        self.num_looks += 1
        return DEFAULT[name]

    def __iter__(self) -> Iterator[str]:
        return iter(DEFAULT)

    def __len__(self) -> int:
        return len(DEFAULT)


@pytest.mark.parametrize("is_suspended", [True, False])
def test_a_spec_is_looked_through_once(world: World, is_suspended: bool) -> None:
    """A planner's work, and a rendering against the ceilings, for each of thousands of jobs."""
    profiles = Watched()
    world.rules = replace(world.rules, profiles=profiles, heal_interval_seconds=1e9)
    world.restart_operator()
    world.submit(suspend=is_suspended)
    world.settle()
    before = profiles.num_looks
    for _ in range(3):
        world.wait(1)
    assert profiles.num_looks == before > 0
    world.edit(lifecycle={"stallSeconds": 100})
    world.settle()
    assert profiles.num_looks > before, "another generation is another spec"
