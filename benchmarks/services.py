"""What models served beside a job cost: requests beside Ray Serve alone, and a step whose service is slow.

    python benchmarks/services.py [--rows 4096] [--rounds 5] [--pairs 3] [--seconds 0.5]

A tiny classifier that knows nothing, one copy. Rows of 16 a request, 8 requests under way, in two kinds that alternate:
`ours` is `Service.reward` of each row against the shipped application behind the token; `direct` sends the same
requests without our client to an application of Ray Serve that holds the model and nothing else, without a token. Rows
a second; milliseconds of a request (p50, p99).

A step with a service that takes `--seconds` a batch is set beside one whose reward waits for nothing: as in
benchmarks/slow_rewards.py.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import secrets
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
from slow_rewards import job, step_seconds
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from rljob_api.loading.load import parse_job
from rljob_api.planning.planner import plan
from rljob_worker.databuffer.routes.hosts import hosts_of
from rljob_worker.local.services import ServicesPlace, services_environment
from rljob_worker.process.child import LoggedChild
from rljob_worker.process.marked_processes import end_marked_processes
from rljob_worker.rewards.access import ServiceAccess
from rljob_worker.rewards.service import Service
from rljob_worker.tiny.make import make_model
from rljob_worker.tiny.recipe import quick

BATCH_ROWS, CONCURRENCY, START_SECONDS = 16, 8, 600.0
APPLICATIONS = """
import asyncio

from ray import serve

from rljob_api.catalogue.services import RewardModelOptions
from rljob_worker.services.models.reward_model import ServedRewardModel


@serve.deployment(max_ongoing_requests=64)
class Plain:
    def __init__(self, path):
        self.model = RewardModel(RewardModelOptions(path=path, max_tokens=128))

    async def __call__(self, request):
        rows = (await request.json())["rows"]
        return {"rewards": await asyncio.to_thread(self.model.rewards, rows)}


@serve.deployment(max_ongoing_requests=64)
class Slow:
    def __init__(self, seconds):
        self.seconds = seconds

    async def __call__(self, request):
        rows = (await request.json())["rows"]
        await asyncio.sleep(self.seconds)
        return {"rewards": [float(row["num_response_tokens"] % 7) for row in rows]}


def plain(options):
    return Plain.bind(**options)


def slow(options):
    return Slow.bind(**options)
"""


def rows_of(count: int) -> list[dict[str, Any]]:
    texts = [
        f"{n % 9}*{n % 7}={n % 63}\n{n % 63}+{n % 5}={n % 63 + n % 5}\n#### {n % 63 + n % 5}" for n in range(count)
    ]
    return [{"prompt": f"How many eggs are {n}?", "response": text} for n, text in enumerate(texts)]


@contextlib.contextmanager
def serving(folder: Path, services: list[dict[str, Any]], gated: bool) -> Iterator[tuple[str, str]]:
    """(address, token) of services that run meanwhile."""
    folder.mkdir()
    document = job(folder, argparse.Namespace(rows=8, tokens=8, steps=1), 0.0)
    document["spec"]["services"] = services
    document["spec"]["rewards"] = [
        {"name": service["name"], "run": "a:b", "service": service["name"]} for service in services
    ]
    (folder / "plan.json").write_text(plan(parse_job(json.dumps(document), [])).canonical_json())
    token, mark, (lifeline, end) = secrets.token_hex(32), secrets.token_hex(16), os.pipe()
    (folder / "token").write_text(token)
    scratch = Path(tempfile.mkdtemp(prefix="rljob-", dir="/tmp"))
    made = plan(parse_job(json.dumps(document), []))
    folders = folder / "plan.json", folder, scratch, folder.parent
    place = ServicesPlace(made, *folders, mark, lifeline, hosts_of(made), token)
    environment = services_environment(os.environ, place, folder / "token", folder / "words.json")
    program = ["-m", "rljob_worker.services"] if gated else [str(folder.parent / "ungated.py")]
    command = [sys.executable, "-P", *program, "0"]
    began = time.monotonic()
    process = LoggedChild(
        "services", command, environment, folder / "services.log", lifeline_fd=lifeline, death_signal=signal.SIGKILL
    )
    try:
        while process.ready() is None:
            if process.code() is not None or time.monotonic() - began > START_SECONDS:
                raise SystemExit(process.log.read_text())
            time.sleep(0.05)
        yield f"http://127.0.0.1:{process.ready()['port']}", token
    finally:
        process.kill()
        end_marked_processes(mark, grace_seconds=0.0)
        os.close(end)
        os.close(lifeline)


Round = tuple[float, list[float]]
"""Seconds of all rows, and milliseconds of each request."""


def ours(url: str, token: str, rows: Sequence[dict[str, Any]]) -> Round:
    async def all_rows() -> Round:
        access = ServiceAccess(name="model", url=url, token=token, batch_rows=BATCH_ROWS, concurrency=CONCURRENCY)
        service, times = Timed(access), list[float]()
        service.times = times
        began = time.perf_counter()
        await asyncio.gather(*map(service.reward, rows))
        seconds = time.perf_counter() - began
        await service.close()
        return seconds, times

    return asyncio.run(all_rows())


class Timed(Service):
    """Notes how long each request takes."""

    times: list[float]

    async def post(self, body: Any, path: str = "") -> Any:
        began = time.perf_counter()
        answer = await super().post(body, path)
        self.times.append((time.perf_counter() - began) * 1e3)
        return answer


def direct(url: str, rows: Sequence[dict[str, Any]]) -> Round:
    async def all_rows() -> Round:
        times, free = list[float](), asyncio.Semaphore(CONCURRENCY)
        async with aiohttp.ClientSession() as session:

            async def one(part: Sequence[dict[str, Any]]) -> None:
                async with free:
                    began = time.perf_counter()
                    async with session.post(url, json={"rows": part}) as response:
                        response.raise_for_status()
                        await response.json()
                    times.append((time.perf_counter() - began) * 1e3)

            began = time.perf_counter()
            await asyncio.gather(*(one(rows[at : at + BATCH_ROWS]) for at in range(0, len(rows), BATCH_ROWS)))
            return time.perf_counter() - began, times

    return asyncio.run(all_rows())


def throughput(folder: Path, classifier: Path, options: argparse.Namespace) -> None:
    rows, result = rows_of(options.rows), dict[str, list[Round]]()
    shipped = {"path": str(classifier), "maxTokens": 128}
    ours_of = [{"name": "model", "run": "rljob_worker.services:reward_model", "options": shipped}]
    plain_of = [{"name": "model", "run": "applications:plain", "options": {"path": str(classifier)}}]
    with (
        serving(folder / "ours", ours_of, gated=True) as (url, token),
        serving(folder / "direct", plain_of, gated=False) as (plain_url, _),
    ):
        for number in range(options.rounds + 1):
            rounds = {
                "ours": ours(f"{url}/model", token, rows),
                "direct": direct(f"{plain_url}/model", rows),
            }
            for kind, item in rounds.items() if number else ():  # the first warms up
                result.setdefault(kind, []).append(item)
    rate = {kind: statistics.median(len(rows) / seconds for seconds, _ in item) for kind, item in result.items()}
    for kind, item in result.items():
        times = sorted(value for _, values in item for value in values)
        p50, p99 = times[len(times) // 2], times[int(len(times) * 0.99)]
        print(f"{kind:10} {rate[kind]:8.0f} rows/s  p50 {p50:6.1f} ms  p99 {p99:6.1f} ms", flush=True)
    print(f"ours / direct: {rate['ours'] / rate['direct']:.2f}", flush=True)


def slow_steps(folder: Path, options: argparse.Namespace) -> None:
    """Steps of a job whose service is slow beside those of one whose reward is quick."""
    size = argparse.Namespace(rows=64, tokens=options.tokens, steps=options.steps)
    grown = []
    for _ in range(options.pairs):
        fast, slow = job(folder / "tiny", size, 0.0), job(folder / "tiny", size, options.seconds)
        slow["spec"]["rewards"] = [
            {"name": "judge", "run": "rljob_worker.rewards:served", "service": "slow", "timeoutSeconds": 60}
        ]
        slow["spec"]["services"] = [
            {"name": "slow", "run": "applications:slow", "options": {"seconds": options.seconds}}
        ]
        times = [step_seconds(folder, item) for item in (fast, slow)]
        grown.append(times[1] - times[0])
        print(f"a step takes {times[0]:.3f} s, with {options.seconds:g} s a request {times[1]:.3f} s", flush=True)
    print(f"longer by {statistics.median(grown):.3f} s (median of {options.pairs} pairs)")


UNGATED = """
import os, sys
from rljob_worker.services import __main__, host

told = host.ray_environment
__main__.ray_environment = lambda token, scratch: {
    name: value for name, value in told(token, scratch).items() if "CALLBACK" not in name
}
sys.exit(__main__.main(*sys.argv[1:]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=0.5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_model(quick(), folder / "tiny")
        (folder / "judge.py").write_text("async def judged(row, seconds):\n    return 1.0 * (row['row_id'] % 7)\n")
        (folder / "applications.py").write_text(APPLICATIONS)
        (folder / "ungated.py").write_text(UNGATED)
        classifier = AutoModelForSequenceClassification.from_pretrained(folder / "tiny" / "model", num_labels=1)
        classifier.save_pretrained(folder / "classifier")
        AutoTokenizer.from_pretrained(folder / "tiny" / "model").save_pretrained(folder / "classifier")
        throughput(folder, folder / "classifier", options)
        slow_steps(folder, options)


if __name__ == "__main__":
    main()
