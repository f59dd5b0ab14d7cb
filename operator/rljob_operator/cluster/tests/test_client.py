"""The six verbs over real HTTP: what is sent, what comes back, what is tried again."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from rljob_operator.cluster import errors
from rljob_operator.cluster.api import list_pages
from rljob_operator.cluster.client import ApiCluster, apply_body
from rljob_operator.cluster.connection import ApiRequest
from rljob_operator.cluster.kinds import NAMESPACE, POD, RAY_SERVICE, RLJOB, WORKLOAD_KUEUE, resource_kind_of
from rljob_operator.cluster.login import Login, NoLogin
from rljob_operator.cluster.rate_limit import RateLimit
from rljob_operator.cluster.retry_policy import ApiResponse, RetryPolicy
from rljob_operator.tests import virtual_time
from rljob_operator.tests.api_server import (
    ApiServer,
    Requests,
    api_server,
    bookmark,
    break_off,
    cluster_of,
    hang,
    page,
    refuse,
    say,
    too_old,
    watch,
)
from rljob_operator.vocabulary.backoff import Backoff

PODS = "/api/v1/namespaces/team-a/pods"
JOBS = "/apis/rljob.dev/v1alpha1/namespaces/team-a/rljobs"
POD_A = {"metadata": {"name": "a", "namespace": "team-a", "resourceVersion": "7"}}

Scene = Callable[[ApiServer, ApiCluster], Awaitable[None]]


def play(scene: Scene, folder: Path, **options: Any) -> None:
    async def stage() -> None:
        async with api_server() as server, cluster_of(server, folder, **options) as cluster:
            await scene(server, cluster)

    asyncio.run(stage())


def test_paths_of_kinds() -> None:
    assert POD.path("team-a", "a") == f"{PODS}/a"
    assert POD.path() == "/api/v1/pods"
    assert RLJOB.path("team-a", "job", "status") == f"{JOBS}/job/status"
    assert NAMESPACE.path("ignored", "team-a") == "/api/v1/namespaces/team-a"
    assert resource_kind_of({"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "Workload"}) is WORKLOAD_KUEUE


def test_a_page_that_is_too_large_is_asked_for_in_halves(tmp_path: Path) -> None:
    """And the page after it as well, until one is small."""
    pods = [{"metadata": {"name": f"p{at}", "note": "x" * (60_000 if at < 6 else 1)}} for at in range(40)]

    async def answer(request: web.Request) -> web.StreamResponse:
        begin, limit = int(request.query.get("continue") or 0), int(request.query["limit"])
        end = begin + limit
        continue_ = str(end) if end < len(pods) else ""
        return web.json_response(
            {"metadata": {"resourceVersion": "9", "continue": continue_}, "items": pods[begin:end]}
        )

    async def scene(server: ApiServer, cluster: ApiCluster) -> None:
        server.on("GET", "/api/v1/pods", answer)
        result = [
            item async for page in list_pages(replace(cluster, most_page_bytes=100_000), POD) for item in page.items
        ]
        assert result == pods
        limits = [seen.query["limit"] for seen in server.seen]
        assert limits[:9] == ["500", "250", "125", "62", "31", "15", "7", "3", "1"]
        assert limits[9:] == ["1", "1", "1", "1", "1", "1", "2", "4", "8", "16", "32"]

    play(scene, tmp_path)


def test_get_says_none_for_what_is_not_there(tmp_path: Path) -> None:
    async def scene(server: ApiServer, cluster: ApiCluster) -> None:
        server.on("GET", f"{PODS}/a", say(POD_A))
        server.on("GET", f"{PODS}/b", refuse(404, "NotFound", 'pods "b" not found'))
        assert await cluster.get(POD, "team-a", "a") == POD_A
        assert await cluster.get(POD, "team-a", "b") is None

    play(scene, tmp_path)


def test_list_asks_for_pages_and_labels(tmp_path: Path) -> None:
    async def scene(server: ApiServer, cluster: ApiCluster) -> None:
        server.on("GET", "/api/v1/pods", page(POD_A, version=9, continue_="more"), page(version=9))
        first = await cluster.list(POD, labels="rljob.dev/job in (a, b)", limit=1)
        assert (first.items, first.resource_version, first.continue_) == ((POD_A,), "9", "more")
        last = await cluster.list(POD, labels="rljob.dev/job in (a, b)", limit=1, continue_=first.continue_)
        assert last.continue_ is None
        assert server.seen[0].query == {"limit": "1", "labelSelector": "rljob.dev/job in (a, b)"}
        assert server.seen[1].query["continue"] == "more"

    play(scene, tmp_path)


def test_create_and_apply_say_who_writes(tmp_path: Path) -> None:
    async def scene(server: ApiServer, cluster: ApiCluster) -> None:
        server.on("POST", PODS, say(POD_A))
        server.on("PATCH", f"{JOBS}/job/status", say(POD_A))
        assert await cluster.create(POD, "team-a", {"metadata": {"name": "a"}}) == POD_A
        await cluster.apply_status(RLJOB, "team-a", {"metadata": {"name": "job"}, "status": {"phase": "Running"}})
        create, apply = server.seen
        assert create.query == {"fieldManager": "rljob-operator", "fieldValidation": "Strict"}
        assert create.body == {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}
        assert apply.query == {"fieldManager": "rljob-operator", "force": "true"}
        assert apply.headers["Content-Type"] == "application/apply-patch+yaml; charset=utf-8"
        assert apply.body["apiVersion"] == "rljob.dev/v1alpha1"

    play(scene, tmp_path)


def test_delete_may_name_a_grace_time_and_which_one_it_means(tmp_path: Path) -> None:
    async def scene(server: ApiServer, cluster: ApiCluster) -> None:
        server.on("DELETE", f"{PODS}/a", say({}), refuse(409, "Conflict", "uid differs"), refuse(404, "NotFound"))
        assert await cluster.delete(POD, "team-a", "a", grace_seconds=0, uid="u1") is True
        assert await cluster.delete(POD, "team-a", "a", uid="u1") is False, "another bears the name"
        assert await cluster.delete(POD, "team-a", "a") is False, "already gone"
        assert server.seen[0].body["gracePeriodSeconds"] == 0
        assert server.seen[0].body["preconditions"] == {"uid": "u1"}

    play(scene, tmp_path)


def test_what_stays_with_its_own_is_deleted_after_it(tmp_path: Path) -> None:
    async def scene(server: ApiServer, cluster: ApiCluster) -> None:
        server.on("DELETE", "/apis/ray.io/v1/namespaces/team-a/rayservices/a", say({}))
        server.on("DELETE", f"{PODS}/a", say({}))
        await cluster.delete(RAY_SERVICE, "team-a", "a")
        await cluster.delete(POD, "team-a", "a")
        assert [item.body["propagationPolicy"] for item in server.seen] == ["Foreground", "Background"]

    play(scene, tmp_path)


def test_a_passing_refusal_is_tried_again_and_every_request_counted(tmp_path: Path) -> None:
    requests = Requests()

    async def scene(server: ApiServer, cluster: ApiCluster) -> None:
        server.on("GET", f"{PODS}/a", refuse(429, "TooManyRequests"), refuse(503), say(POD_A))
        assert await cluster.get(POD, "team-a", "a") == POD_A
        assert requests.seen == [("get", "429"), ("get", "503"), ("get", "200")]

    play(scene, tmp_path, requests=requests)


def test_retry_after_is_read(tmp_path: Path) -> None:
    async def scene(server: ApiServer, cluster: ApiCluster) -> None:
        server.on("GET", f"{PODS}/a", refuse(429, "TooManyRequests", **{"Retry-After": "7"}))
        answer = await cluster.connection.send(ApiRequest("get", "GET", f"{PODS}/a"))
        assert (answer.status, answer.retry_after) == (429, "7")

    play(scene, tmp_path)


class Scripted:
    """A connection whose answers are known."""

    def __init__(self, *answers: ApiResponse) -> None:
        self.answers = list(answers)

    async def send(self, request: ApiRequest) -> ApiResponse:
        return self.answers.pop(0)


def test_pauses_between_attempts_are_waited_for() -> None:
    """Our own back-off is 1 s, and the server asks for 7."""

    async def scene() -> float:
        connection = Scripted(ApiResponse(503), ApiResponse(429, retry_after="7"), ApiResponse(200, b"{}"))
        await ApiCluster(connection, RateLimit(None), RetryPolicy(3, Backoff(1, 1))).get(POD, "team-a", "a")  # type: ignore[arg-type]
        return virtual_time.now()

    assert 7.5 <= virtual_time.run(scene()) <= 8  # of a pause by back-off up to a half is left to chance


def test_a_connection_that_breaks_or_hangs_is_tried_again(tmp_path: Path) -> None:
    requests = Requests()

    async def scene(server: ApiServer, cluster: ApiCluster) -> None:
        server.on("POST", PODS, break_off, hang, say(POD_A))
        assert await cluster.create(POD, "team-a", {"metadata": {"name": "a"}}) == POD_A
        assert requests.seen == [("create", "error"), ("create", "error"), ("create", "200")]

    play(scene, tmp_path, requests=requests, timeout_seconds=1.0)


def test_after_the_last_attempt_the_server_s_words_come_out(tmp_path: Path) -> None:
    async def scene(server: ApiServer, cluster: ApiCluster) -> None:
        server.on("GET", f"{PODS}/a", refuse(503, "ServiceUnavailable", "etcd is gone"))
        with pytest.raises(errors.Unavailable, match="cannot get pods in namespace team-a: etcd is gone"):
            await cluster.get(POD, "team-a", "a")
        assert len(server.seen) == 3

    play(scene, tmp_path)


def test_a_server_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    async def scene() -> None:
        async with api_server() as server:
            pass
        async with cluster_of(server, tmp_path) as cluster:
            with pytest.raises(errors.Unavailable, match="(?i)connect"):
                await cluster.get(POD, "team-a", "a")

    asyncio.run(scene())


def test_a_refusal_that_stays_is_not_tried_again(tmp_path: Path) -> None:
    async def scene(server: ApiServer, cluster: ApiCluster) -> None:
        server.on("POST", PODS, refuse(422, "Invalid", "spec.containers: Required value"))
        with pytest.raises(errors.Rejected, match="Required value"):
            await cluster.create(POD, "team-a", {"metadata": {"name": "a"}})
        assert len(server.seen) == 1

    play(scene, tmp_path)


def test_a_proxy_s_page_is_no_answer(tmp_path: Path) -> None:
    async def scene(server: ApiServer, cluster: ApiCluster) -> None:
        from aiohttp import web

        async def welcome(request: web.Request) -> web.StreamResponse:
            return web.Response(text="<html>please log in</html>", content_type="text/html")

        server.on("GET", f"{PODS}/a", welcome)
        with pytest.raises(errors.Unavailable, match="the answer is not JSON"):
            await cluster.get(POD, "team-a", "a")

    play(scene, tmp_path)


def test_watch_yields_events_until_the_server_ends_it(tmp_path: Path) -> None:
    async def scene(server: ApiServer, cluster: ApiCluster) -> None:
        server.on("WATCH", PODS, watch(("ADDED", POD_A), bookmark(12), then="end"))
        stream = cluster.watch(POD, "team-a", resource_version="5")
        assert [type_ async for type_, _ in stream] == ["ADDED", "BOOKMARK"]
        assert server.seen[0].query["resourceVersion"] == "5"
        assert server.seen[0].query["allowWatchBookmarks"] == "true"

    play(scene, tmp_path)


def test_an_event_larger_than_any_buffer_arrives(tmp_path: Path) -> None:
    huge = {"metadata": {**POD_A["metadata"], "annotations": {"note": "<" * 9_000_000}}}

    async def scene(server: ApiServer, cluster: ApiCluster) -> None:
        server.on("WATCH", PODS, watch(("ADDED", huge), then="end"))
        assert [item async for _, item in cluster.watch(POD, "team-a", resource_version="5")] == [huge]

    play(scene, tmp_path)


@pytest.mark.parametrize(
    ("responder", "error_type", "words"),
    [
        (watch(too_old()), errors.Gone, "too old resource version"),
        (refuse(410, "Expired", "too old"), errors.Gone, "too old"),
        (refuse(403, "Forbidden", 'User "x" cannot watch resource "pods"'), errors.Forbidden, "may not watch pods"),
        (watch(then="break"), errors.Unavailable, "cannot watch pods"),
        (watch(("ADDED", POD_A), then="silence"), errors.Unavailable, "silent for 0.3 s"),
        (hang, errors.Unavailable, "silent for 0.3 s"),
    ],
)
def test_a_watch_that_fails_says_how(
    responder: Any, error_type: type[errors.ApiError], words: str, tmp_path: Path
) -> None:
    async def scene(server: ApiServer, cluster: ApiCluster) -> None:
        server.on("WATCH", PODS, responder)
        with pytest.raises(error_type, match=words):
            async with aclosing(cluster.watch(POD, "team-a", resource_version="1")) as stream:
                async for _ in stream:
                    pass

    play(scene, tmp_path, silence_seconds=0.3 if "silent" in words else 60.0)


def test_a_rotated_token_is_read_again_once_for_all_who_were_refused(tmp_path: Path) -> None:
    async def scene(server: ApiServer, cluster: ApiCluster) -> None:
        server.on("GET", f"{PODS}/a", say(POD_A))
        server.token = "secret"
        assert await cluster.get(POD, "team-a", "a")
        server.token = "rotated"
        (tmp_path / "token").write_text("rotated")
        assert all(await asyncio.gather(*(cluster.get(POD, "team-a", "a") for _ in range(10))))
        assert len([seen for seen in server.seen if seen.headers["Authorization"].endswith("secret")]) == 11

    play(scene, tmp_path)


def test_a_watch_after_a_rotation_works_at_the_second_try(tmp_path: Path) -> None:
    async def scene(server: ApiServer, cluster: ApiCluster) -> None:
        server.on("WATCH", PODS, watch(("ADDED", POD_A), then="end"))
        server.token = "rotated"
        (tmp_path / "token").write_text("rotated")
        with pytest.raises(errors.Unavailable, match="Unauthorized"):
            async for _ in cluster.watch(POD, "team-a", resource_version="1"):
                pass
        assert [type_ async for type_, _ in cluster.watch(POD, "team-a", resource_version="1")] == ["ADDED"]

    play(scene, tmp_path)


def test_credentials_that_stay_refused_are_an_error_and_no_loop(tmp_path: Path) -> None:
    async def scene(server: ApiServer, cluster: ApiCluster) -> None:
        server.token = "unknown to us"
        with pytest.raises(errors.Unavailable, match="Unauthorized"):
            await cluster.get(POD, "team-a", "a")
        assert len(server.seen) == 2

    play(scene, tmp_path)


def test_without_a_kubeconfig_the_fix_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

    async def log_in() -> None:
        from kubernetes.aio.client import Configuration

        await Login(tmp_path / "absent").configure(Configuration())

    with pytest.raises(NoLogin, match="give --kubeconfig a file"):
        asyncio.run(log_in())


def test_emoji_are_themselves() -> None:
    """Gloo wishes good luck; in JSON's escapes, two halves of a character, YAML refuses it."""
    assert apply_body({"message": "GLHF! 🏖️"}) == '{"message": "GLHF! 🏖️"}'.encode()


@given(st.text(alphabet=st.characters(exclude_categories=("Cs",))))
def test_yaml_reads_what_was_written(text: str) -> None:
    assert yaml.safe_load(apply_body({"message": text})) == {"message": text}


def test_half_a_character_is_replaced() -> None:
    assert yaml.safe_load(apply_body(["\ud83c"])) == ["?"]
