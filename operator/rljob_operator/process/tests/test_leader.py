"""A leader in this process, against a scripted API server: what it waits for, hears of, and leaves behind."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_operator.cluster.client import ApiCluster
from rljob_operator.cluster.kinds import POD
from rljob_operator.cluster.login import Login
from rljob_operator.guard import EndedByItself
from rljob_operator.listening import resync
from rljob_operator.listening.progress import ProgressReader
from rljob_operator.process import leader, probes
from rljob_operator.process.leader import Leader, Reconcile, ReconcilerContext
from rljob_operator.process.metrics import Metrics
from rljob_operator.process.settings import OperatorSettings
from rljob_operator.tests.api_server import ApiServer, api_server, cluster_of, page, refuse, say, watch
from rljob_operator.tests.rljob_apis import GROUP, JOBS, PODS, job, serve_rljobs
from rljob_operator.vocabulary.key import Key

KUEUE = {"name": "kueue.x-k8s.io", "versions": [{"groupVersion": "kueue.x-k8s.io/v1beta2", "version": "v1beta2"}]}
WORKLOADS = "/apis/kueue.x-k8s.io/v1beta2/workloads"


@pytest.fixture(autouse=True)
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks that a leader takes every 5 s, and the time that it leaves to events."""
    monkeypatch.setattr(probes, "CHECK_SECONDS", 0.1)
    monkeypatch.setattr(probes, "TICK_SECONDS", 0.1)
    monkeypatch.setattr(resync, "GRACE_SECONDS", 0.1)


Guard = Callable[[], Awaitable[None]]
Script = Callable[[ApiServer], None]


@dataclass
class RecordingReconciler:
    """A reconcile that writes down what it looks at, and takes as long as it should."""

    begun: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    ended: list[str] = field(default_factory=list)
    may_end: asyncio.Event = field(default_factory=asyncio.Event)
    reconciler_context: ReconcilerContext | None = None

    def make(self, surroundings: ReconcilerContext) -> Reconcile:
        self.reconciler_context = surroundings
        return self.reconcile

    async def reconcile(self, key: Key) -> None:
        self.begun.put_nowait(key.name)
        await self.may_end.wait()
        self.ended.append(key.name)


@dataclass
class Scene:
    server: ApiServer
    cluster: ApiCluster
    leader: Leader
    metrics: Metrics
    diary: RecordingReconciler
    stop: asyncio.Event
    work: asyncio.Task[None]

    async def until_unready(self, words: str | None) -> str | None:
        """Wait until the leader is unready for a reason that holds `words`, or ready."""
        while not self._is_unready(words):
            assert not self.work.done()
            await asyncio.sleep(0.01)
        return self.leader.unready

    def _is_unready(self, words: str | None) -> bool:
        unready = self.leader.unready
        return unready is None if words is None else words in (unready or "")


@asynccontextmanager
async def leading(folder: Path, script: Script, guards: list[Guard], settings: dict[str, Any]) -> AsyncIterator[Scene]:
    async with api_server() as server, cluster_of(server, folder) as cluster, ProgressReader() as progress:
        serve_rljobs(server)
        script(server)
        diary, metrics, stop = RecordingReconciler(), Metrics(), asyncio.Event()
        login = Login(folder / "kubeconfig")
        leader = Leader(OperatorSettings(**settings), login, metrics, cluster, cluster, progress, diary.make)
        work = asyncio.create_task(leader.run(guards, stop, lambda: None))
        try:
            yield Scene(server, cluster, leader, metrics, diary, stop, work)
        finally:
            diary.may_end.set()
            stop.set()
            await asyncio.wait([work])


def play(
    folder: Path,
    scene: Callable[[Scene], Awaitable[None]],
    script: Script = lambda server: None,
    guards: list[Guard] | None = None,
    **settings: Any,
) -> None:
    async def stage() -> None:
        async with asyncio.timeout(TEST_TIMEOUT_SECONDS), leading(folder, script, guards or [], settings) as acting:
            await scene(acting)

    asyncio.run(stage())


def num_reconciled(acting: Scene, result: str) -> float | None:
    return acting.metrics.registry.get_sample_value("rljob_operator_reconcile_seconds_count", {"result": result})


def child(name: str, of: str) -> dict[str, Any]:
    labels = {"rljob.dev/job": of, "app.kubernetes.io/managed-by": "rljob-operator"}
    metadata = {"name": name, "namespace": "default", "labels": labels, "resourceVersion": "6"}
    return {"metadata": metadata, "spec": {"nodeName": "node1", "containers": []}}


def test_no_job_is_looked_at_before_pods_are_known(tmp_path: Path) -> None:
    listed = asyncio.Event()

    async def pods(request: web.Request) -> web.StreamResponse:
        await listed.wait()
        return web.json_response({"metadata": {"resourceVersion": "5"}, "items": []})

    def script(server: ApiServer) -> None:
        server.on("GET", PODS, pods)
        server.on("GET", JOBS, page(job("mine", 3), version=5))

    async def scene(acting: Scene) -> None:
        while not (acting.server.requests("GET", PODS) and acting.server.requests("GET", JOBS)):
            await asyncio.sleep(0.01)
        assert acting.leader.unready == "jobs and pods are not listed yet"
        # kopf would list jobs without a limit of 1
        assert {seen.query["limit"] for seen in acting.server.requests("GET", JOBS)} == {"1"}
        listed.set()
        assert await acting.diary.begun.get() == "mine"
        await acting.until_unready(None)

    play(tmp_path, scene, script)


def test_what_lives_is_looked_at_before_what_has_ended_and_before_kopf_tells_of_both(tmp_path: Path) -> None:
    ended = [{**job(name, 3), "status": {"phase": "Succeeded"}} for name in ("a", "b", "c")]
    living = job("living", 4)

    def script(server: ApiServer) -> None:
        # the first answer is to whether jobs may be listed, and kopf's list comes last
        rest = page(ended[2], living, version=5)
        server.on(
            "GET",
            JOBS,
            page(version=5),
            page(*ended[:2], version=5, continue_="x"),
            rest,
            page(*ended, living, version=5),
        )

    async def scene(acting: Scene) -> None:
        begun = [await acting.diary.begun.get() for _ in range(3)]
        assert begun[0] == "living" and set(begun[1:]) < {"a", "b", "c"}
        for _ in range(20):  # longer than kopf takes to its first question
            await acting.cluster.list(POD, None)
        assert not acting.server.requests("GET", "/apis/rljob.dev/v1alpha1"), "kopf waits for a look at what lives"
        acting.diary.may_end.set()
        while not acting.server.requests("WATCH", JOBS):
            await asyncio.sleep(0.01)
        while len(acting.diary.ended) < 4:
            await asyncio.sleep(0.01)
        assert sorted(acting.diary.ended) == ["a", "b", "c", "living"], "what is known is not news"

    play(tmp_path, scene, script)


def test_jobs_that_cannot_be_listed_at_once_are_heard_of_one_by_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def script(server: ApiServer) -> None:
        server.on("GET", JOBS, page(version=5), refuse(403), page(job("mine", 3), version=5))

    async def scene(acting: Scene) -> None:
        assert await acting.diary.begun.get() == "mine"

    with caplog.at_level(logging.WARNING):
        play(tmp_path, scene, script)
    assert "jobs are looked at as kopf reports them" in caplog.text


@pytest.mark.parametrize("path", [JOBS, "/apis"])
def test_a_cluster_without_the_crd_is_waited_for_until_a_stop_is_requested(
    path: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(acting: Scene) -> None:
        await acting.until_unready("no such thing; is the CRD installed?")
        for _ in range(5):  # as long as it would take to look again at once
            await acting.cluster.list(POD, None)
        acting.stop.set()
        await acting.work
        assert "no such thing; is the CRD installed?" in caplog.text
        assert len(acting.server.requests("GET", path)) == 1, "the next look is in 5 s"
        assert not acting.server.requests("WATCH", JOBS)

    play(tmp_path, scene, lambda server: server.on("GET", path, refuse(404, "NotFound", "no such thing")))


def test_jobs_are_looked_at_once_the_crd_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader, "LOOK_AGAIN_SECONDS", 0.1)

    async def scene(acting: Scene) -> None:
        unready = await acting.until_unready("is the CRD installed?")
        assert "cannot list rljobs.rljob.dev" in (unready or "")
        assert acting.leader.fault is None, "a restart would not help"
        acting.server.on("GET", JOBS, page(job("mine", 3), version=5))
        assert await acting.diary.begun.get() == "mine"

    missing = refuse(404, "NotFound", "the server could not find the requested resource")
    play(tmp_path, scene, lambda server: server.on("GET", JOBS, missing))


def test_every_namespace_must_be_readable(tmp_path: Path) -> None:
    def script(server: ApiServer) -> None:
        for plural, prefix in (("rljobs", "/apis/rljob.dev/v1alpha1"), ("pods", "/api/v1")):
            server.on("GET", f"{prefix}/namespaces/a/{plural}", page(version=5))
            server.on("WATCH", f"{prefix}/namespaces/a/{plural}", watch())
        refusal = 'rljobs.rljob.dev is forbidden: User "x" cannot list resource "rljobs" in API group "rljob.dev"'
        server.on("GET", "/apis/rljob.dev/v1alpha1/namespaces/b/rljobs", refuse(403, "Forbidden", refusal))

    async def scene(acting: Scene) -> None:
        await acting.until_unready("the operator may not list rljobs.rljob.dev in namespace b")

    play(tmp_path, scene, script, namespaces=("a", "b"))


def test_changes_of_pods_and_of_places_in_a_queue_are_reasons_to_look(tmp_path: Path) -> None:
    def script(server: ApiServer) -> None:
        server.on("GET", "/apis", say({"kind": "APIGroupList", "groups": [GROUP, KUEUE]}))
        server.on("WATCH", PODS, watch(("ADDED", child("mine-0", of="mine"))))
        server.on("GET", WORKLOADS, page(version=5))
        server.on("WATCH", WORKLOADS, watch(("ADDED", child("yours", of="yours"))))

    async def scene(acting: Scene) -> None:
        assert {await acting.diary.begun.get(), await acting.diary.begun.get()} == {"mine", "yours"}
        ours = "app.kubernetes.io/managed-by=rljob-operator,rljob.dev/job"
        for path in (PODS, WORKLOADS):
            assert {seen.query["labelSelector"] for seen in acting.server.requests("WATCH", path)} == {ours}
        surroundings = acting.diary.reconciler_context
        assert surroundings is not None
        # of a pod's spec nothing else is read, and there are many pods
        assert [item["spec"] for item in surroundings.pods.of(Key("default", "mine"))] == [{"nodeName": "node1"}]
        assert last_heard(acting, "pods") and last_heard(acting, "workloads")

    play(tmp_path, scene, script)


def test_a_job_is_heard_of_with_its_version_until_it_is_deleted(tmp_path: Path) -> None:
    def script(server: ApiServer) -> None:
        server.on("GET", JOBS, page(job("mine", 3), job("old", 4), version=5))
        server.on(
            "WATCH", JOBS, watch(("MODIFIED", job("mine", 6)), ("DELETED", job("old", 7)), ("ADDED", job("x", 8)))
        )

    async def scene(acting: Scene) -> None:
        acting.diary.may_end.set()
        surroundings = acting.diary.reconciler_context
        assert surroundings is not None
        # kopf reports each job in its own time
        while surroundings.heard.versions != {Key("default", "mine"): 6, Key("default", "x"): 8}:
            await asyncio.sleep(0.01)
        assert last_heard(acting, "rljobs")

    play(tmp_path, scene, script)


def test_a_change_that_no_event_reported_is_found_and_counted(tmp_path: Path) -> None:
    async def listing(request: web.Request) -> web.StreamResponse:
        items = [job("unheard", 8)] if request.query.get("limit") == "500" and watched.is_set() else []
        return web.json_response({"metadata": {"resourceVersion": "9"}, "items": items})

    async def silence(request: web.Request) -> web.StreamResponse:
        watched.set()
        return await watch()(request)

    watched = asyncio.Event()

    def script(server: ApiServer) -> None:
        server.on("GET", JOBS, listing)
        server.on("WATCH", JOBS, silence)

    async def scene(acting: Scene) -> None:
        assert await acting.diary.begun.get() == "unheard"
        assert acting.metrics.registry.get_sample_value("rljob_operator_missed_events_total") == 1.0

    play(tmp_path, scene, script, queue={"resyncSeconds": 0.1})


def test_what_is_under_way_ends_before_the_leader_does(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "rljob_operator")

    async def scene(acting: Scene) -> None:
        assert await acting.diary.begun.get() == "mine"
        acting.stop.set()
        await acting.until_unready("stopping")
        assert not acting.work.done()
        acting.diary.may_end.set()
        await acting.work
        assert acting.diary.ended == ["mine"] and num_reconciled(acting, "Ok") == 1
        assert "stopping; 0 jobs wait for the next leader" in caplog.text
        assert "did not end" not in caplog.text

    play(tmp_path, scene, lambda server: server.on("GET", JOBS, page(job("mine", 3), version=5)))


def test_what_does_not_end_in_time_is_left(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scene(acting: Scene) -> None:
        assert await acting.diary.begun.get() == "mine"
        acting.stop.set()
        await acting.work
        assert acting.diary.ended == []
        assert "what was under way did not end within 0.1 s" in caplog.text

    def script(server: ApiServer) -> None:
        server.on("GET", JOBS, page(job("mine", 3), version=5))

    play(tmp_path, scene, script, queue={"stopSeconds": 0.1})


def test_a_guard_that_raises_ends_the_leader_at_once(tmp_path: Path) -> None:
    lost = asyncio.Event()

    async def guard() -> None:
        await lost.wait()
        raise ConnectionError("the lease is lost")

    async def scene(acting: Scene) -> None:
        assert await acting.diary.begun.get() == "mine"
        lost.set()
        with pytest.raises(ExceptionGroup) as raised:
            await acting.work
        assert [str(error) for error in raised.value.exceptions] == ["the lease is lost"]
        assert acting.diary.ended == []

    play(tmp_path, scene, lambda server: server.on("GET", JOBS, page(job("mine", 3), version=5)), [guard])


def test_a_part_that_should_run_for_ever_and_ends_is_named(tmp_path: Path) -> None:
    async def guard() -> None:
        pass

    async def scene(acting: Scene) -> None:
        with pytest.raises(ExceptionGroup) as raised:
            await acting.work
        assert [(type(error), str(error)) for error in raised.value.exceptions] == [(EndedByItself, "guard ended")]

    play(tmp_path, scene, guards=[guard])


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ({"watchSilenceSeconds": 1}, r"no watch has spoken for \d+ s, and a read fails"),
        ({"queueOldestSeconds": 1}, "a job has waited for"),
        ({"loopLagSeconds": 0.5}, "the event loop was"),
    ],
)
def test_a_leader_that_is_deaf_or_stuck_or_late_is_ailing(limit: dict[str, float], words: str, tmp_path: Path) -> None:
    async def scene(acting: Scene) -> None:
        assert await acting.diary.begun.get() == "mine"
        acting.server.on("GET", JOBS, refuse(403, "Forbidden", "no more"))
        time.sleep(1.0)  # nothing else of the loop runs
        while acting.leader.fault is None:
            await asyncio.sleep(0.05)
        assert re.search(words, acting.leader.fault)

    play(tmp_path, scene, lambda server: server.on("GET", JOBS, page(job("mine", 3), version=5)), probes=limit)


def last_heard(acting: Scene, resource: str) -> float | None:
    name = "rljob_operator_watch_last_event_timestamp_seconds"
    return acting.metrics.registry.get_sample_value(name, {"resource": resource})
