"""The operator's client, reflector and election against a real API server."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster import KubeCluster
from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_operator.cluster import errors
from rljob_operator.cluster.client import ApiCluster
from rljob_operator.cluster.connection import ApiConnection
from rljob_operator.cluster.kinds import CONFIG_MAP, LEASE, NAMESPACE, POD
from rljob_operator.cluster.lease import Elector, LeaseLost
from rljob_operator.cluster.login import Login
from rljob_operator.cluster.rate_limit import RateLimit
from rljob_operator.cluster.reflector import Reflector
from rljob_operator.vocabulary.key import Key


@pytest.fixture
def namespace(cluster: KubeCluster) -> Iterator[str]:
    name = f"client-{uuid.uuid4().hex[:8]}"
    cluster.kubectl("create", "namespace", name)
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")


@asynccontextmanager
async def client(kubeconfig: Path) -> AsyncIterator[ApiCluster]:
    async with ApiConnection(Login(kubeconfig), lambda verb, code: None) as connection:
        yield ApiCluster(connection, RateLimit(None))


def play(cluster: KubeCluster, scene: Callable[[ApiCluster], Awaitable[None]], kubeconfig: Path | None = None) -> None:
    async def stage() -> None:
        async with client(kubeconfig or cluster.kubeconfig) as api, asyncio.timeout(TEST_TIMEOUT_SECONDS):
            await scene(api)

    asyncio.run(stage())


async def until(check: Callable[[], Awaitable[bool]]) -> None:
    while not await check():
        await asyncio.sleep(0.1)


def pod(name: str, job: str = "job") -> dict[str, Any]:
    """One that no node will run, so that it lives no longer than the test wants."""
    labels = {"rljob.dev/job": job, "app.kubernetes.io/managed-by": "rljob-operator"}
    container = {"name": "worker", "image": "localhost/busybox:1", "imagePullPolicy": "Never"}
    spec = {"nodeSelector": {"rljob.dev/nowhere": "true"}, "containers": [container]}
    return {"metadata": {"name": name, "labels": labels}, "spec": {**spec, "automountServiceAccountToken": False}}


def test_objects_come_change_and_go(cluster: KubeCluster, namespace: str) -> None:
    async def scene(api: ApiCluster) -> None:
        body = {"metadata": {"name": "c"}, "data": {"step": "1"}}
        assert await api.get(CONFIG_MAP, namespace, "c") is None
        created = await api.create(CONFIG_MAP, namespace, body)
        with pytest.raises(errors.AlreadyExists):
            await api.create(CONFIG_MAP, namespace, body)
        applied = await api.apply(CONFIG_MAP, namespace, {"metadata": {"name": "c"}, "data": {"step": "2"}})
        assert applied["data"] == {"step": "2"} and applied["metadata"]["uid"] == created["metadata"]["uid"]
        again = await api.apply(CONFIG_MAP, namespace, {"metadata": {"name": "c"}, "data": {"step": "2"}})
        assert again["metadata"]["resourceVersion"] == applied["metadata"]["resourceVersion"], "no change, no write"
        assert await api.delete(CONFIG_MAP, namespace, "c", uid=str(uuid.uuid4())) is False, "not the one that is meant"
        assert await api.delete(CONFIG_MAP, namespace, "c", uid=created["metadata"]["uid"]) is True
        assert await api.delete(CONFIG_MAP, namespace, "c") is False

    play(cluster, scene)


def test_refusals_are_distinguished(cluster: KubeCluster, namespace: str) -> None:
    async def scene(api: ApiCluster) -> None:
        with pytest.raises(errors.Rejected, match="must consist of lower case"):
            await api.create(CONFIG_MAP, namespace, {"metadata": {"name": "Not A Name"}})
        with pytest.raises(errors.NotFound, match='namespaces "nowhere" not found'):
            await api.create(CONFIG_MAP, "nowhere", {"metadata": {"name": "c"}})
        created = await api.create(CONFIG_MAP, namespace, {"metadata": {"name": "c"}})
        await api.apply(CONFIG_MAP, namespace, {"metadata": {"name": "c"}, "data": {"step": "2"}})
        with pytest.raises(errors.UpdateConflict):
            metadata = {"name": "c", "resourceVersion": created["metadata"]["resourceVersion"]}
            await api.apply(CONFIG_MAP, namespace, {"metadata": metadata, "data": {"step": "3"}})
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        await api.apply(NAMESPACE, None, {"metadata": {"name": namespace, "labels": labels}})
        with pytest.raises(errors.Rejected, match="violates PodSecurity"):
            await api.create(POD, namespace, pod("a"))

    play(cluster, scene)


def test_a_quota_that_is_used_up_is_named(cluster: KubeCluster, namespace: str) -> None:
    cluster.kubectl("create", "quota", "few", "--hard=count/configmaps=1", "-n", namespace)

    async def scene(api: ApiCluster) -> None:
        async def counted() -> bool:
            text = cluster.kubectl("get", "quota", "few", "-n", namespace, "-o", "jsonpath={.status.used}")
            return "count/configmaps" in text

        await until(counted)
        with pytest.raises(errors.QuotaExceeded, match="exceeded quota: few"):
            for number in range(3):
                await api.create(CONFIG_MAP, namespace, {"metadata": {"name": f"c{number}"}})

    play(cluster, scene)


def test_a_missing_right_is_named(cluster: KubeCluster, namespace: str, tmp_path: Path) -> None:
    cluster.kubectl("create", "serviceaccount", "poor", "-n", namespace)
    token = cluster.kubectl("create", "token", "poor", "-n", namespace).strip()
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    config["users"] = [{"name": user["name"], "user": {"token": token}} for user in config["users"]]
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(config))

    async def scene(api: ApiCluster) -> None:
        with pytest.raises(errors.Forbidden) as caught:
            await api.create(POD, namespace, pod("a"))
        assert f"the operator may not create pods in namespace {namespace}; grant" in str(caught.value)
        with pytest.raises(errors.Forbidden, match="the operator may not watch pods"):
            async for _ in api.watch(POD, namespace, resource_version="0"):
                pass

    play(cluster, scene, kubeconfig)


def test_the_reflector_follows_and_knows_at_once_what_was_created(cluster: KubeCluster, namespace: str) -> None:
    key = Key(namespace, "job")

    async def scene(api: ApiCluster) -> None:
        changes: asyncio.Queue[Key] = asyncio.Queue()
        reflector = Reflector(api, POD, [namespace], "rljob.dev/job", changes.put_nowait)
        running = asyncio.create_task(reflector.run())
        await reflector.wait_synced()
        for name in ("a", "b"):
            reflector.note(await api.create(POD, namespace, pod(name)))
        assert [child["metadata"]["name"] for child in reflector.of(key)] == ["a", "b"]
        await api.delete(POD, namespace, "a", grace_seconds=0)
        while [child["metadata"]["name"] for child in reflector.of(key)] != ["b"]:
            assert await changes.get() == key
        await asyncio.sleep(1)
        assert [child["metadata"]["name"] for child in reflector.of(key)] == ["b"]
        running.cancel()

    play(cluster, scene)


def test_pages_of_a_list_are_complete(cluster: KubeCluster, namespace: str) -> None:
    async def scene(api: ApiCluster) -> None:
        for number in range(5):
            await api.create(POD, namespace, pod(f"p{number}"))
        first = await api.list(POD, namespace, labels="rljob.dev/job=job", limit=2)
        second = await api.list(POD, namespace, labels="rljob.dev/job=job", limit=2, continue_=first.continue_)
        third = await api.list(POD, namespace, labels="rljob.dev/job=job", limit=2, continue_=second.continue_)
        assert [len(page.items) for page in (first, second, third)] == [2, 2, 1]
        assert third.continue_ is None

    play(cluster, scene)


def test_one_leader_at_a_time(cluster: KubeCluster, namespace: str) -> None:
    async def scene(api: ApiCluster) -> None:
        def elector(identity: str) -> Elector:
            return Elector(
                api,
                namespace=namespace,
                name="leader",
                identity=identity,
                duration_seconds=4,
                renew_deadline_seconds=3,
                retry_seconds=0.5,
            )

        first, second = elector("one"), elector("two")
        await first.acquire()
        holding = asyncio.create_task(first.hold())
        waiting = asyncio.create_task(second.acquire())
        await asyncio.sleep(6)
        assert not waiting.done() and not holding.done()
        holding.cancel()
        await first.release()
        await waiting
        lease = await api.get(LEASE, namespace, "leader")
        assert lease is not None and lease["spec"]["holderIdentity"] == "two"
        with pytest.raises(LeaseLost, match="two took Lease"):
            await first.hold()

    play(cluster, scene)


def test_a_leader_whose_lease_is_deleted_makes_it_again(cluster: KubeCluster, namespace: str) -> None:
    async def scene(api: ApiCluster) -> None:
        elector = Elector(api, namespace=namespace, name="leader", identity="one", retry_seconds=0.2)
        await elector.acquire()
        await api.delete(LEASE, namespace, "leader")
        holding = asyncio.create_task(elector.hold())

        async def is_back() -> bool:
            return await api.get(LEASE, namespace, "leader") is not None

        await until(is_back)
        holding.cancel()

    play(cluster, scene)
