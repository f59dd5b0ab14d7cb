"""Malformed and hostile requests to every route: the worker lives, and conversations beside them have the very tokens
that they have without."""

from __future__ import annotations

import asyncio
import json
import random
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import aiohttp
import numpy as np
import pytest

from rljob_api.v1alpha1 import ConversationSpec
from rljob_worker.conversations.agents.agent_pool import AgentPool
from rljob_worker.conversations.agents.policy_endpoint import ServedPolicy
from rljob_worker.conversations.playing.loop import Conversations
from rljob_worker.conversations.playing.plays import Play
from rljob_worker.conversations.playing.tests.playing import SAMPLING, tasks_of
from rljob_worker.conversations.playing.tests.test_with_engine import ModelLetters
from rljob_worker.conversations.policy import Bounds
from rljob_worker.conversations.run_functions.program import program
from rljob_worker.conversations.world import SharedWorld
from rljob_worker.endpoint.server import CHAT, RESULT, TASK, TOKENS
from rljob_worker.endpoint.tests.serving import asked, until
from rljob_worker.engines.rollout.tests.subjects import transformers_engine, write_model
from rljob_worker.stages.stage import Alone

AGENTS_TOKEN, AT_ONCE, TURNS = "the-token-of-agents", 16, 4
GOOD, VICTIMS = ("hi", "what is it?", "no"), 8
BOUNDS = Bounds(turns=1 << 20, rows=128, response_tokens=90, row_tokens=140)
VALUES = [
    None, True, -1, 1e308, 10**30, "", "x" * 3000, [], {}, [[[]]], {"a": {"b": []}}, "\u0000", "é", "user", "auto",
]  # fmt: skip
WRONG = ["", "x", [], {}, -1e308, [1], {"a": 1}]
"""Neither a reward nor a time to wait."""
FIELDS = {
    CHAT: [
        "messages", "model", "n", "tools", "stream", "stop", "max_tokens", "temperature", "logit_bias", "min_tokens",
        "response_format", "tool_choice", "logprobs", "top_logprobs", "stream_options",
    ],
    TOKENS: ["token_ids", "sampling_params", "model", "stream", "request_id", "features"],
    TASK: ["more"],
    RESULT: ["metrics", "error"],
}  # fmt: skip


def right_body(route: str, rng: random.Random) -> dict:
    """A body that is right for a call; of a task and a result one that takes and ends nothing."""
    if route == CHAT:
        return asked(str(rng.random()), max_tokens=3)
    if route == TOKENS:
        tokens = [rng.choice([3, 40, 95, 96, 1 << 20, (1 << 31) - 1, 1 << 31, -1, 1.5, None])]
        return {"token_ids": [3, *tokens], "sampling_params": {"max_tokens": 3, "logprobs": 1}}
    return {"wait_seconds" if route == TASK else "reward": rng.choice(WRONG)}


def body_of(route: str, rng: random.Random) -> bytes:
    """A body that is wrong somewhere, or by chance right."""
    body = right_body(route, rng)
    for _ in range(rng.randint(0, 4)):
        body[rng.choice(FIELDS[route])] = rng.choice([*VALUES, [rng.choice(VALUES)], [{"role": rng.choice(VALUES)}]])
    data = bytearray(json.dumps(body).encode())
    for _ in range(rng.choice([0, 0, 1, 20])):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data[: rng.randrange(len(data))] if rng.random() < 0.2 else data)


def request_of(route: str, key: str, rng: random.Random) -> bytes:
    """A request that is HTTP more or less."""
    body, kind = body_of(route, rng), rng.random()
    length = rng.choice([len(body), len(body), len(body), 0 if route != TASK else 1, len(body) + 9, 1 << 62])
    head = (
        f"POST {route} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Length: {length}\r\n\r\n".encode()
    )
    if kind < 0.05:
        return rng.randbytes(rng.randint(1, 400)) + b"\r\n\r\n"
    if kind < 0.1:
        head = head.replace(b"Content-Length", b"Transfer-Encoding: chunked\r\nX")
    elif kind < 0.2:
        head = head.replace(b"Bearer ", rng.choice([b"", b"Basic ", b"Bearer x", b"Bearer \xff"]))
    elif kind < 0.25:
        head = head.replace(b"Host: x", rng.choice([b"Host: " + b"y" * 20_000, b"A: b\r\n" * 300, b"\x00: \x01"]))
    elif kind < 0.3:
        head = head.replace(b"POST /", rng.choice([b"PUT /", b"GET /v1/models/../%00", b"POST //", b"DELETE /"]))
    return head + body


class Agents:
    """Those of a pool, honest and hostile ones, in its event loop."""

    def __init__(self, pool: AgentPool, num_hostile: int) -> None:
        self._endpoint, self._num_hostile = pool.endpoint, num_hostile
        self.num_sent = 0
        self.statuses: dict[str, set[bytes]] = defaultdict(set)
        """By route, what hostile requests were answered."""

    async def play(self) -> None:
        """Take all trajectories, play the first ones beside what is sent with the keys of the others, and end all."""
        async with aiohttp.ClientSession(self._endpoint.base_url.removesuffix("/v1")) as session:
            tasks = [await self._post(session, TASK, AGENTS_TOKEN, {}) for _ in range(len(GOOD) + VICTIMS)]
            tasks.sort(key=lambda task: task["group"])
            keys = [task["api_key"] for task in tasks[len(GOOD) :]]
            try:
                hostile = (self._send(keys, seed) for seed in range(AT_ONCE))
                await asyncio.gather(*hostile, *(self._talk(session, task) for task in tasks[: len(GOOD)]))
                await until(lambda: self._endpoint.num_connections <= AT_ONCE)
            finally:
                for task in tasks:
                    await self._post(session, RESULT, task["api_key"], {"reward": 1})

    async def _post(self, session: aiohttp.ClientSession, route: str, key: str, body: dict) -> dict:
        async with session.post(route, json=body, headers={"Authorization": f"Bearer {key}"}) as response:
            return await response.json()

    async def _talk(self, session: aiohttp.ClientSession, task: dict) -> None:
        """A few turns, spread over the time in which hostile requests come."""
        messages = list(task["messages"])
        for turn in range(TURNS):
            await until(lambda turn=turn: self.num_sent >= self._num_hostile * turn // TURNS)
            body = {"model": "actor", "messages": messages, "max_tokens": 8}
            answer = await self._post(session, CHAT, task["api_key"], body)
            messages += [answer["choices"][0]["message"], {"role": "user", "content": f"more {turn}"}]

    async def _send(self, keys: list[str], seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(self._num_hostile // AT_ONCE):
            route = rng.choice([CHAT, TOKENS, TASK, RESULT])
            request = request_of(route, AGENTS_TOKEN if route == TASK else rng.choice(keys), rng)
            reader, writer = await asyncio.open_connection("127.0.0.1", self._endpoint.port)
            writer.write(request)
            with suppress(TimeoutError, ConnectionError, ValueError):
                if rng.random() < 0.5:
                    writer.write_eof()
                async with asyncio.timeout(0.02 if rng.random() < 0.2 else 0.5):
                    self.statuses[route].add((await reader.readline())[9:12])
            writer.transport.abort()
            self.num_sent += 1


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Iterator[str]:
    return write_model(tmp_path_factory.mktemp("model"))


def played(path: str, num_hostile: int):
    """The conversations of the honest agents, and what the others were answered."""
    pool = AgentPool(ConversationSpec.model_validate({"agentPool": {}}), ServedPolicy("actor"), AGENTS_TOKEN)
    agents, shared = Agents(pool, num_hostile), SharedWorld(programs=pool)
    conversations = Conversations(transformers_engine(path), program, ModelLetters(), BOUNDS, shared=shared)
    tasks = tasks_of(*GOOD, *(f"victim {number}" for number in range(VICTIMS)))
    try:
        conversations.prepare(pool.open())
        with ThreadPoolExecutor(1) as thread:
            talk = thread.submit(conversations.prepare, agents.play())
            step = Play(tasks, SAMPLING, "step-1", rows_per_trajectory=BOUNDS.rows)
            trajectories = conversations.play(step, Alone())
            talk.result()
    finally:
        conversations.close()
    return trajectories, agents.statuses


@pytest.mark.parametrize("num_hostile", [320, pytest.param(10_000, marks=pytest.mark.slow)])
def test_conversations_beside_hostile_requests_have_the_tokens_that_they_have_alone(path, num_hostile):
    alone, _ = played(path, 0)
    beside, statuses = played(path, num_hostile)
    assert all({b"400", b"401"} <= statuses[route] for route in FIELDS), statuses
    assert b"200" in statuses[CHAT] and b"200" in statuses[TOKENS]
    for one, other in zip(alone[: len(GOOD)], beside, strict=False):
        assert (one.failed, one.num_turns, other.failed, other.num_turns) == (None, TURNS, None, TURNS), other.message
        for row, same in zip(one.rows, other.rows, strict=True):
            assert row.sequence().tolist() == same.sequence().tolist() and row.mask.tolist() == same.mask.tolist()
            np.testing.assert_allclose(row.log_probs, same.log_probs, atol=1e-4)
