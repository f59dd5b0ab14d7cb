"""The reflector against real HTTP: nothing stays believed that is not so."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_operator.cluster.client import ApiCluster
from rljob_operator.cluster.kinds import POD
from rljob_operator.cluster.reflector import Pauses, Reflector, keep_node_of_pod
from rljob_operator.cluster.tests.test_child_cache import names_of, pod
from rljob_operator.guard import Guard
from rljob_operator.tests.api_server import (
    ApiServer,
    api_server,
    bookmark,
    cluster_of,
    page,
    refuse,
    too_old,
    watch,
)
from rljob_operator.vocabulary.backoff import Backoff
from rljob_operator.vocabulary.key import Key

PODS = "/api/v1/pods"
JOB = Key("default", "job")


class Play:
    """A reflector that runs, and the changes that it reported."""

    def __init__(self, server: ApiServer, cluster: ApiCluster, namespaces: tuple[str, ...], relist: float) -> None:
        self.server = server
        self.changes: asyncio.Queue[Key] = asyncio.Queue()
        pauses = Pauses(relist, Backoff(0.01, 0.02), after_short_watch_seconds=0.01)
        self.spoke_at: list[float] = []
        self.failures: list[str] = []
        self.reflector = Reflector(
            cluster,
            POD,
            namespaces,
            "rljob.dev/job",
            self.changes.put_nowait,
            pauses=pauses,
            on_activity=lambda kind: self.spoke_at.append(self.reflector.last_activity),
            guard=Guard(self.failures.append),
        )

    async def until(self, *names: str) -> None:
        """Wait until every namespace is listed and the job's children are these."""
        await self.reflector.wait_synced()  # an empty list is not a change, so no change announces it
        while names_of(self.reflector.of(JOB)) != list(names):
            await self.changes.get()


def play(
    scene: Callable[[Play], Awaitable[None]],
    script: Callable[[ApiServer], None],
    folder: Path,
    *,
    namespaces: tuple[str, ...] = (),
    relist: float = 300.0,
    silence: float = TEST_TIMEOUT_SECONDS,
) -> None:
    async def stage() -> None:
        async with api_server() as server, cluster_of(server, folder, silence_seconds=silence) as cluster:
            script(server)
            acting = Play(server, cluster, namespaces, relist)
            running = asyncio.create_task(acting.reflector.run())
            try:
                async with asyncio.timeout(TEST_TIMEOUT_SECONDS):
                    await scene(acting)
            finally:
                running.cancel()

    asyncio.run(stage())


def test_a_pod_deleted_while_the_watch_was_down_is_noticed(tmp_path: Path) -> None:
    """The ghost: a list, a watch that is too old, and a list without one of the pods."""

    def script(server: ApiServer) -> None:
        server.on(
            "GET",
            PODS,
            page(pod("p0", 1), pod("p1", 2), pod("p2", 3), version=5),
            page(pod("p0", 1), pod("p2", 3), version=9),
        )
        server.on("WATCH", PODS, watch(too_old()), watch())

    async def scene(acting: Play) -> None:
        await acting.until("p0", "p1", "p2")
        await acting.until("p0", "p2")
        assert acting.reflector.departed(JOB, "p1") == pod("p1", 2)

    play(scene, script, tmp_path)


def test_a_list_is_read_page_by_page_and_the_watch_begins_where_it_ends(tmp_path: Path) -> None:
    def script(server: ApiServer) -> None:
        server.on("GET", PODS, page(pod("a", 1), version=5, continue_="more"), page(pod("b", 2), version=5))
        server.on("WATCH", PODS, watch(("ADDED", pod("c", 6))))

    async def scene(acting: Play) -> None:
        await acting.until("a", "b", "c")
        assert acting.server.requests("WATCH", PODS)[0].query["resourceVersion"] == "5"

    play(scene, script, tmp_path)


def test_after_a_bookmark_the_next_watch_begins_there(tmp_path: Path) -> None:
    def script(server: ApiServer) -> None:
        server.on("GET", PODS, page(version=5))
        server.on("WATCH", PODS, watch(bookmark(77), then="end"), watch(("ADDED", pod("a", 78))))

    async def scene(acting: Play) -> None:
        await acting.until("a")
        assert [seen.query["resourceVersion"] for seen in acting.server.requests("WATCH", PODS)] == ["5", "77"]
        assert len(acting.server.requests("GET", PODS)) == 1, "a watch that ends calls for no list"

    play(scene, script, tmp_path)


def test_a_half_open_watch_is_left_and_everything_listed_again(tmp_path: Path) -> None:
    def script(server: ApiServer) -> None:
        server.on("GET", PODS, page(version=5), page(pod("a", 6), version=6))
        server.on("WATCH", PODS, watch())

    async def scene(acting: Play) -> None:
        await acting.until("a")

    play(scene, script, tmp_path, silence=0.2)


def test_everything_is_listed_again_now_and_then_although_the_watch_speaks(tmp_path: Path) -> None:
    def script(server: ApiServer) -> None:
        server.on("GET", PODS, page(pod("a", 1), version=5), page(version=9))
        server.on("WATCH", PODS, watch(bookmark(6), then="end"))

    async def scene(acting: Play) -> None:
        await acting.until("a")
        await acting.until()

    play(scene, script, tmp_path, relist=0.3)


def test_refusals_are_outlived(tmp_path: Path) -> None:
    def script(server: ApiServer) -> None:
        server.on("GET", PODS, *[refuse(403, "Forbidden", "no")] * 3, page(pod("a", 1), version=5))
        server.on("WATCH", PODS, watch())

    async def scene(acting: Play) -> None:
        assert not acting.reflector.synced
        await acting.until("a")

    play(scene, script, tmp_path)


def test_each_namespace_has_its_own_watch_and_others_are_not_asked_for(tmp_path: Path) -> None:
    def script(server: ApiServer) -> None:
        for namespace in ("default", "team-a"):
            server.on("GET", f"/api/v1/namespaces/{namespace}/pods", page(version=5))
        server.on("WATCH", "/api/v1/namespaces/default/pods", watch(("ADDED", pod("a", 6))))
        server.on("WATCH", "/api/v1/namespaces/team-a/pods", watch())

    async def scene(acting: Play) -> None:
        await acting.until("a")
        await acting.reflector.wait_synced()
        assert acting.reflector.of(Key("elsewhere", "job")) == ()
        assert acting.server.requests("GET", PODS) == []

    play(scene, script, tmp_path, namespaces=("default", "team-a"))


def test_what_was_created_is_known_at_once(tmp_path: Path) -> None:
    def script(server: ApiServer) -> None:
        server.on("GET", PODS, page(version=5))
        server.on("WATCH", PODS, watch())

    async def scene(acting: Play) -> None:
        await acting.reflector.wait_synced()
        acting.reflector.note(pod("a", 6))
        assert names_of(acting.reflector.of(JOB)) == ["a"]

    play(scene, script, tmp_path)


def test_a_list_and_every_event_is_an_activity(tmp_path: Path) -> None:
    def script(server: ApiServer) -> None:
        server.on("GET", PODS, page(version=5))
        server.on("WATCH", PODS, watch(("ADDED", pod("a", 6))))

    async def scene(acting: Play) -> None:
        assert acting.reflector.last_activity == float("-inf")
        await acting.until("a")
        listed_at, heard_at = acting.spoke_at
        assert float("-inf") < listed_at < heard_at == acting.reflector.last_activity

    play(scene, script, tmp_path)


def test_what_nobody_reads_is_not_kept() -> None:
    body = pod("a", 1, managedFields=[{"manager": "kubelet"}])
    body |= {"spec": {"nodeName": "node1", "containers": [{"name": "worker"}]}, "status": {"phase": "Running"}}
    keep_node_of_pod(body)
    assert body == pod("a", 1) | {"spec": {"nodeName": "node1"}, "status": {"phase": "Running"}}


def test_an_object_that_cannot_be_taken_is_left_out_and_counted(tmp_path: Path) -> None:
    """By a list and by a watch; the others are seen."""
    hostile = {"metadata": {"name": "hostile", "namespace": "default", "labels": {"rljob.dev/job": "job"}}}

    def script(server: ApiServer) -> None:
        server.on("GET", PODS, page(pod("a", 1), {"metadata": None}, {}, hostile, version=5))
        server.on("WATCH", PODS, watch(("ADDED", hostile), ("ADDED", pod("b", 6))))

    async def scene(acting: Play) -> None:
        await acting.until("a", "b")
        assert acting.failures == ["watch of pods"] * 4

    play(scene, script, tmp_path)
