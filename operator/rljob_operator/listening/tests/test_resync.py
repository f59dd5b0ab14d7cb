"""The resync finds what no event reported, and blames nobody for events that are on their way."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from rljob_operator.cluster.api import Page
from rljob_operator.cluster.errors import Unavailable
from rljob_operator.cluster.kinds import RLJOB, ResourceKind
from rljob_operator.listening.resync import Resync, SeenVersions
from rljob_operator.tests.virtual_time import run
from rljob_operator.vocabulary.key import Key

A, B = Key("default", "a"), Key("default", "b")


class Jobs:
    """The jobs of an API server, by version."""

    def __init__(self) -> None:
        self.versions: dict[Key, int] = {}
        self.as_of = 0
        self.away = False

    async def list(
        self,
        kind: ResourceKind,
        namespace: str | None = None,
        *,
        labels: str = "",
        limit: int = 500,
        continue_: Any = None,
    ) -> Page:
        assert kind is RLJOB
        if self.away:
            raise Unavailable("list", RLJOB, None, "connection refused")
        items = tuple(
            {"metadata": {"namespace": key.namespace, "name": key.name, "resourceVersion": str(version)}}
            for key, version in self.versions.items()
        )
        return Page(items, str(self.as_of))


def play(scene: Callable[[Jobs, Resync, SeenVersions, list[Key]], Awaitable[None]]) -> None:
    async def stage() -> None:
        jobs, heard, added = Jobs(), SeenVersions(), list[Key]()
        resync = Resync(jobs, (), heard, added.append, interval_seconds=300)  # type: ignore[arg-type]
        await scene(jobs, resync, heard, added)

    run(stage())


def test_what_events_reported_is_not_looked_at_again() -> None:
    async def scene(jobs: Jobs, resync: Resync, heard: SeenVersions, added: list[Key]) -> None:
        jobs.versions, jobs.as_of = {A: 3, B: 4}, 9
        heard.take(A, 3, False)
        heard.take(B, 6, False)  # of something newer than the list shows
        await resync.once()
        assert (added, resync.num_deaf) == ([], 0)

    play(scene)


def test_a_change_that_no_event_reported_is_looked_at_once() -> None:
    async def scene(jobs: Jobs, resync: Resync, heard: SeenVersions, added: list[Key]) -> None:
        heard.take(A, 3, False)
        jobs.versions, jobs.as_of = {A: 5, B: 4}, 9
        await resync.once()
        assert (added, resync.num_deaf) == ([A, B], 1)
        await resync.once()
        assert (added, resync.num_deaf) == ([A, B], 0)

    play(scene)


def test_a_job_deleted_unheard_is_looked_at_although_no_job_is_left() -> None:
    async def scene(jobs: Jobs, resync: Resync, heard: SeenVersions, added: list[Key]) -> None:
        heard.take(A, 3, False)
        jobs.as_of = 9
        await resync.once()
        assert added == [A]
        await resync.once()
        assert added == [A]

    play(scene)


def test_an_event_that_is_late_by_seconds_is_waited_for() -> None:
    async def scene(jobs: Jobs, resync: Resync, heard: SeenVersions, added: list[Key]) -> None:
        jobs.versions, jobs.as_of = {A: 5}, 9
        heard.take(B, 2, False)
        listing = asyncio.create_task(resync.once())
        await asyncio.sleep(2)
        heard.take(A, 5, False)
        heard.take(B, 8, True)
        await listing
        assert (added, resync.num_deaf) == ([], 0)

    play(scene)


def test_a_job_created_after_the_list_is_not_taken_for_deleted() -> None:
    async def scene(jobs: Jobs, resync: Resync, heard: SeenVersions, added: list[Key]) -> None:
        jobs.as_of = 9
        heard.take(A, 12, False)
        await resync.once()
        assert added == []

    play(scene)


def test_an_outage_is_outlived() -> None:
    async def scene(jobs: Jobs, resync: Resync, heard: SeenVersions, added: list[Key]) -> None:
        jobs.away = True
        running = asyncio.create_task(resync.run())
        await asyncio.sleep(1000)
        jobs.away, jobs.versions, jobs.as_of = False, {A: 5}, 9
        await asyncio.sleep(310)
        assert added == [A]
        running.cancel()

    play(scene)
