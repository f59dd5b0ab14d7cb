"""A running job is read again only when something newer was heard of it, and a late watch harms nothing."""

from __future__ import annotations

import asyncio

import pytest

from rljob_operator.cluster.errors import UpdateConflict
from rljob_operator.cluster.kinds import RLJOB
from rljob_operator.inspection.job_store import JobStore, ObservedJob
from rljob_operator.listening.resync import SeenVersions
from rljob_operator.tests.world import KEY, World


@pytest.fixture
def world() -> World:
    world = World()
    world.to_running()
    world.cluster.requests.clear()
    return world


def num_reads(world: World) -> int:
    return [(verb, kind) for verb, kind, _ in world.cluster.requests].count(("get", "RLJob"))


def test_a_job_that_runs_is_not_read_at_every_look(world: World) -> None:
    for _ in range(5):
        world.clock.now += 10
        world.reconcile()
    assert len(world.progress.asked) >= 5 and num_reads(world) == 0


def test_a_job_of_which_nothing_was_heard_is_read_now_and_then(world: World) -> None:
    """A watch may be deaf, and say neither of an edit nor of the deletion."""
    world.late_since = int(world.job["metadata"]["resourceVersion"])
    world.edit(suspend=True)
    world.reconcile()
    assert world.status.phase == "Running" and num_reads(world) == 0
    world.clock.now += 60
    world.settle()
    assert world.status.phase == "Suspending"


def test_an_edit_that_was_heard_of_is_read(world: World) -> None:
    world.edit(suspend=True)
    world.settle()
    assert world.status.phase == "Suspending" and num_reads(world) >= 1


def test_a_job_that_was_deleted_is_read_and_forgotten(world: World) -> None:
    world.cluster.remove(RLJOB, world.job)
    assert world.reconcile() is None and num_reads(world) == 1


def test_a_job_that_does_not_run_is_read_at_every_look(world: World) -> None:
    world.edit(suspend=True)
    world.settle()
    world.wait(100)
    assert world.status.phase == "Suspended"
    world.cluster.requests.clear()
    world.reconcile()
    world.reconcile()
    assert num_reads(world) == 2


def test_over_an_edit_not_yet_heard_of_nothing_is_written(world: World) -> None:
    """The watch is late by one edit: the write is refused, and the next look finds the edit."""
    heard = SeenVersions()
    jobs = JobStore(world.cluster, heard.of)
    heard.take(KEY, int(world.job["metadata"]["resourceVersion"]), deleted=False)

    async def scene() -> ObservedJob | None:
        job = await jobs.read(KEY)
        assert job is not None
        await jobs.write(job, job.status)
        assert await jobs.read(KEY) is job
        world.edit(suspend=True)
        with pytest.raises(UpdateConflict):
            await jobs.write(job, job.status.model_copy(update={"restarts": 7}))
        return await jobs.read(KEY)

    result = asyncio.run(scene())
    assert result is not None and result.body["spec"]["suspend"] is True and result.status.restarts == 0
