"""The whole process against a scripted API server: start, leadership, events, probes, stop."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from aiohttp import web

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_operator.tests.api_server import ApiServer, api_server, page, refuse, status, watch, write_kubeconfig
from rljob_operator.tests.rljob_apis import JOBS, PODS, job, serve_rljobs

LEASE = "/apis/coordination.k8s.io/v1/namespaces/default/leases/rljob-operator"


@dataclass
class Lease:
    """The one Lease, as the server stores it."""

    holder: str = ""
    version: int = 1

    def object(self) -> dict[str, Any]:
        spec = {"holderIdentity": self.holder, "leaseDurationSeconds": 15}
        return {"metadata": {"name": "rljob-operator", "resourceVersion": str(self.version)}, "spec": spec}

    async def read(self, request: web.Request) -> web.StreamResponse:
        return web.json_response(self.object())

    async def write(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if body["metadata"]["resourceVersion"] != str(self.version):
            return status(409, "Conflict", "the object has been modified")
        self.holder, self.version = body["spec"]["holderIdentity"], self.version + 1
        return web.json_response(self.object())


@dataclass
class Replica:
    """A running operator, and what it prints."""

    server: ApiServer
    lease: Lease
    process: asyncio.subprocess.Process
    lines: list[str] = field(default_factory=list)
    ports: list[int] = field(default_factory=list)

    async def until(self, words: str) -> None:
        """Read on until a line holds `words`."""
        assert self.process.stdout is not None
        while not any(words in line for line in self.lines):
            line = (await self.process.stdout.readline()).decode()
            assert line, f"the process ended before it said {words!r}: {self.lines}"
            self._read(line)

    async def ended(self) -> int:
        """The exit code; all that was printed before is in `lines`."""
        assert self.process.stdout is not None
        for line in (await self.process.stdout.read()).decode().splitlines():
            self._read(line)
        return await self.process.wait()

    async def page(self, path: str) -> tuple[int, str]:
        port = self.ports[1] if path == "/metrics" else self.ports[0]
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{port}{path}") as response,
        ):
            return response.status, await response.text()

    def _read(self, line: str) -> None:
        self.lines.append(line.strip())
        if "probes on port" in line:
            self.ports = [int(word.strip(",")) for word in line.split() if word.strip(",\n").isdecimal()]


@asynccontextmanager
async def replica(
    folder: Path, script: Callable[[ApiServer], None], lease: Lease, settings: dict[str, Any]
) -> AsyncIterator[Replica]:
    async with api_server() as server:
        serve_rljobs(server)
        server.on("GET", LEASE, lease.read)
        server.on("PATCH", LEASE, lease.write)
        script(server)
        config = folder / "operator.yaml"
        local = {
            "bindAddress": "127.0.0.1",
            "probePort": 0,
            "metricsPort": 0,
            "lease": {"namespace": "default", "retrySeconds": 0.3},
        }
        config.write_text(yaml.safe_dump(local | settings))
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "rljob_operator.tests.recording_operator",
            "--config", config, "--kubeconfig", write_kubeconfig(folder / "kubeconfig", server),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        try:
            yield Replica(server, lease, process)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


def play(
    folder: Path,
    scene: Callable[[Replica], Awaitable[None]],
    script: Callable[[ApiServer], None] = lambda server: None,
    *,
    holder: str = "",
    **settings: Any,
) -> None:
    async def stage() -> None:
        async with (
            asyncio.timeout(4 * TEST_TIMEOUT_SECONDS),
            replica(folder, script, Lease(holder), settings) as acting,
        ):
            await scene(acting)

    asyncio.run(stage())


def writes(server: ApiServer) -> list[tuple[str, str]]:
    return [(seen.method, seen.path) for seen in server.seen if seen.method not in ("GET", "WATCH")]


def test_jobs_that_are_there_and_jobs_that_come_are_looked_at_and_nothing_is_written(tmp_path: Path) -> None:
    def script(server: ApiServer) -> None:
        server.on("GET", JOBS, page(job("old", 3), version=5))
        server.on("WATCH", JOBS, watch(("ADDED", job("new", 6)), ("DELETED", job("old", 7))))

    async def scene(acting: Replica) -> None:
        await acting.until("end default/old")
        await acting.until("end default/new")
        assert {path for _, path in writes(acting.server)} == {LEASE}
        assert (await acting.page("/healthz"))[0] == 200
        assert await acting.page("/readyz") == (200, "ok\n")
        _, text = await acting.page("/metrics")
        assert "rljob_operator_leader 1.0" in text

    play(tmp_path, scene, script)


@pytest.mark.slow
def test_a_job_as_deep_as_the_api_server_takes_it_costs_the_others_nothing(tmp_path: Path) -> None:
    """Both kopf and our own client read it, from a list and from a watch."""
    levels = 9_990
    spec = '{"a":' * levels + "{}" + "}" * levels

    def deep(body: dict[str, Any]) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def respond(request: web.Request) -> web.StreamResponse:
            return web.Response(text=json.dumps(body).replace('"deep"', spec) + "\n", content_type="application/json")

        return respond

    nested = {**job("nested", 3), "spec": "deep"}
    changed = {"type": "MODIFIED", "object": {**job("nested", 6), "spec": "deep"}}

    def script(server: ApiServer) -> None:
        server.on("GET", JOBS, deep({"metadata": {"resourceVersion": "5"}, "items": [nested, job("good", 4)]}))
        server.on("WATCH", JOBS, deep(changed), watch(("ADDED", job("new", 7))))

    async def scene(acting: Replica) -> None:
        for name in ("nested", "good", "new"):
            await acting.until(f"end default/{name}")
        assert not any("Traceback" in line for line in acting.lines)

    play(tmp_path, scene, script)


def test_sigterm_ends_what_is_under_way_and_gives_the_lease_back(tmp_path: Path) -> None:
    def script(server: ApiServer) -> None:
        server.on("GET", JOBS, page(job("slow", 3), version=5))

    async def scene(acting: Replica) -> None:
        await acting.until("begin default/slow")
        acting.process.send_signal(signal.SIGTERM)
        await acting.until("stopping;")
        assert acting.process.stdin is not None and "end default/slow" not in acting.lines
        acting.process.stdin.write(b"go on\n")
        assert await acting.ended() == 0
        assert "end default/slow" in acting.lines
        assert acting.lease.holder == ""
        assert not any("Traceback" in line for line in acting.lines)

    play(tmp_path, scene, script)


def test_a_lost_lease_ends_the_process_with_an_error(tmp_path: Path) -> None:
    async def scene(acting: Replica) -> None:
        await acting.until("working")
        acting.lease.holder, acting.lease.version = "thief", acting.lease.version + 1
        assert await acting.ended() == 1
        assert any("thief took Lease default/rljob-operator" in line for line in acting.lines)
        assert acting.lease.holder == "thief"

    play(tmp_path, scene)


def test_a_standby_is_ready_and_reads_nothing_but_the_lease(tmp_path: Path) -> None:
    async def scene(acting: Replica) -> None:
        await acting.until("probes on port")
        while (await acting.page("/readyz"))[0] != 200 or len(acting.server.seen) < 3:
            await asyncio.sleep(0.1)
        assert {seen.path for seen in acting.server.seen} == {LEASE}
        assert "rljob_operator_leader 0.0" in (await acting.page("/metrics"))[1]
        acting.process.send_signal(signal.SIGTERM)
        assert await acting.ended() == 0
        assert acting.lease.holder == "leader"

    play(tmp_path, scene, holder="leader")


def test_restricted_to_namespaces_it_reads_only_those_and_logs_are_json_on_request(tmp_path: Path) -> None:
    def script(server: ApiServer) -> None:
        for plural, prefix in (("rljobs", "/apis/rljob.dev/v1alpha1"), ("pods", "/api/v1")):
            items = [job("a", 3)] if plural == "rljobs" else []
            server.on("GET", f"{prefix}/namespaces/default/{plural}", page(*items, version=5))
            server.on("WATCH", f"{prefix}/namespaces/default/{plural}", watch())

    async def scene(acting: Replica) -> None:
        await acting.until("end default/a")
        records = [json.loads(line) for line in acting.lines if line.startswith("{")]
        assert {"message": "working", "level": "info"}.items() <= records[-1].items()
        paths = {seen.path for seen in acting.server.seen}
        assert not paths & {JOBS, PODS, "/api/v1/namespaces", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"}

    play(tmp_path, scene, script, namespaces=["default"], logFormat="Json")


@pytest.mark.slow
def test_an_api_server_with_a_new_token_is_reached_again(tmp_path: Path) -> None:
    def script(server: ApiServer) -> None:
        server.token = "secret"
        server.on("WATCH", JOBS, watch(then="end"), watch(("ADDED", job("a", 6))))

    async def scene(acting: Replica) -> None:
        await acting.until("working")
        acting.server.token = "rotated"
        (tmp_path / "token").write_text("rotated")
        await acting.until("end default/a")

    play(tmp_path, scene, script)


def test_bad_settings_are_named_and_end_the_process(tmp_path: Path) -> None:
    async def scene(acting: Replica) -> None:
        assert await acting.ended() == 2
        assert acting.lines == [f"{tmp_path}/operator.yaml: workerz: Extra inputs are not permitted"]

    play(tmp_path, scene, workerz=1)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_while_the_server_hangs_is_obeyed(number: signal.Signals, tmp_path: Path) -> None:
    def script(server: ApiServer) -> None:
        server.on("GET", PODS, refuse(503))

    async def scene(acting: Replica) -> None:
        await acting.until("listing again")
        acting.process.send_signal(number)
        assert await acting.ended() == 0

    play(tmp_path, scene, script, api={"attempts": 1})
