"""Reading /progress over real HTTP, also from pods that misbehave."""

import asyncio
import gzip
import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_operator.listening.progress import ProgressReader
from rljob_operator.states.situation.facts import ProgressAnswer, UnreachableLead

Page = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def pod(page: Page) -> AsyncIterator[str]:
    application = web.Application()
    application.router.add_get("/progress", page)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def saying(text: str, status: int = 200) -> Page:
    async def page(request: web.Request) -> web.StreamResponse:
        return web.Response(text=text, status=status)

    return page


def read(page: Page, timeout_seconds: float = TEST_TIMEOUT_SECONDS) -> ProgressAnswer | UnreachableLead:
    async def scene() -> ProgressAnswer | UnreachableLead:
        async with pod(page) as address, ProgressReader(timeout_seconds) as reader:
            return await reader.read(address)

    return asyncio.run(scene())


def test_what_a_worker_says() -> None:
    said = {
        "phase": "Running",
        "attempt": 2,
        "step": 41,
        "totalSteps": 200,
        "reward": 0.75,
        "checkpointStep": 40,
        "validation": 0.5,
        "metrics": {"reward/mean": 0.75},
    }
    answer = read(saying(json.dumps(said)))
    assert isinstance(answer, ProgressAnswer)
    assert (answer.phase, answer.attempt, answer.step, answer.total_steps) == ("Running", 2, 41, 200)
    assert (answer.reward, answer.checkpoint_step, answer.metrics) == (0.75, 40, {"reward/mean": 0.75})


def test_what_a_launcher_says_before_its_workers_do() -> None:
    answer = read(saying('{"phase": "Starting", "attempt": 1, "step": 0, "checkpointStep": null}'))
    assert answer == ProgressAnswer(phase="Starting", attempt=1, step=0)


def test_numbers_that_are_none_are_left_out_and_the_rest_believed() -> None:
    said = {"step": 3, "reward": math.nan, "stepSeconds": math.inf, "metrics": {"loss": math.nan, "kl": 0.1}}
    answer = read(saying(json.dumps(said)))
    assert answer == ProgressAnswer(step=3, metrics={"kl": 0.1})


def test_what_goes_beyond_the_api_is_brought_within_it() -> None:
    metrics: dict[str, object] = {"loss": 10**400, "kl": "much", "half \ud83d": 1, "n" * 300: True, "m" * 300: 2}
    said = {"step": 10**25, "totalSteps": -(10**25), "stepSeconds": 1e300, "reward": 10**400, "metrics": metrics}
    answer = read(saying(json.dumps(said)))
    kept = {"half \\ud83d": 1.0, "m" * 254 + " …": 2.0}
    assert answer == ProgressAnswer(step=2**63 - 1, total_steps=0, step_seconds=1e9, metrics=kept)


def test_what_is_packed_is_not_unpacked() -> None:
    async def page(request: web.Request) -> web.StreamResponse:
        return web.Response(body=gzip.compress(b"[" * 10_000_000), headers={"Content-Encoding": "gzip"})

    answer = read(page)
    assert isinstance(answer, UnreachableLead) and "answered something other than progress" in answer.reason


@pytest.mark.parametrize(
    ("page", "words"),
    [
        (saying("gone", status=404), "answered 404"),
        (saying("<html>"), "answered something other than progress"),
        (saying('{"step": "soon"}'), "answered something other than progress"),
        (saying('{"metrics": [1]}'), "answered something other than progress"),
        (saying("[1, 2]"), "answered something other than progress"),
        (saying("[" * 200_000), "answered something other than progress: recursion limit exceeded"),
        (saying('{"step": ' + "[" * 200_000), "answered something other than progress: recursion limit exceeded"),
        (saying('{"attempt": true}'), "answered something other than progress: attempt is not a whole number"),
        (saying('{"step": 1.5}'), "answered something other than progress: step is not a whole number"),
    ],
)
def test_a_pod_that_misbehaves_is_unreachable_and_says_why(page: Page, words: str) -> None:
    answer = read(page)
    assert isinstance(answer, UnreachableLead) and words in answer.reason


def test_a_pod_that_is_silent_is_left_after_the_time_out() -> None:
    async def silent(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(3600)
        raise AssertionError

    answer = read(silent, timeout_seconds=0.1)
    assert isinstance(answer, UnreachableLead) and answer.reason.endswith("did not answer within 0.1 s")


def test_a_pod_that_is_not_there_says_so() -> None:
    async def scene() -> ProgressAnswer | UnreachableLead:
        async with pod(saying("{}")) as address:
            pass
        async with ProgressReader() as reader:
            return await reader.read(address)

    answer = asyncio.run(scene())
    assert isinstance(answer, UnreachableLead) and "/progress: " in answer.reason


def test_an_answer_in_segments_is_read_to_its_end() -> None:
    text = json.dumps({"step": 3, "metrics": {f"metric/{number}": 0.5 for number in range(32)}})

    async def page(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for at in range(0, len(text), 100):
            await response.write(text[at : at + 100].encode())
            await asyncio.sleep(0)
        return response

    answer = read(page)
    assert isinstance(answer, ProgressAnswer) and len(answer.metrics) == 32


def test_an_answer_without_end_is_not_kept() -> None:
    async def page(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b" " * 65536)

    answer = read(page)
    assert isinstance(answer, UnreachableLead) and "more than 1048576 bytes" in answer.reason
