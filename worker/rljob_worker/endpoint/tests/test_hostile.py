"""Ten thousand malformed or hostile requests: the server lives, and calls beside them are answered as without."""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import suppress

import pytest

from rljob_worker.endpoint.tests.serving import Agent, ScriptedPlayer, asked, raw, request_bytes, serve, until

NUM_REQUESTS, AT_ONCE = 10_000, 16
VALUES = [
    None,
    True,
    -1,
    1e308,
    10**30,
    "",
    "x" * 3000,
    [],
    {},
    [[[]]],
    {"a": {"b": []}},
    "\u0000",
    "é",
    "user",
    "auto",
]
FIELDS = [
    "messages", "model", "n", "tools", "stream", "stop", "max_tokens", "temperature", "logit_bias", "response_format",
    "tool_choice", "logprobs", "top_logprobs", "stream_options", "token_ids", "sampling_params",
]  # fmt: skip


def body_of(rng: random.Random) -> bytes:
    """A body that is wrong somewhere, or by chance right."""
    body = asked(str(rng.random()))
    for _ in range(rng.randint(1, 4)):
        body[rng.choice(FIELDS)] = rng.choice([*VALUES, [rng.choice(VALUES)], [{"role": rng.choice(VALUES)}]])
    data = bytearray(json.dumps(body).encode())
    for _ in range(rng.choice([0, 0, 1, 20])):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data[: rng.randrange(len(data))] if rng.random() < 0.2 else data)


def bytes_of(rng: random.Random, agent: Agent) -> bytes:
    """A request that is HTTP more or less."""
    body = body_of(rng)
    request = request_bytes(agent, body, length=rng.choice([len(body), len(body), 0, len(body) + 9, 1 << 62]))
    kind = rng.random()
    if kind < 0.1:
        return rng.randbytes(rng.randint(1, 400)) + b"\r\n\r\n"
    if kind < 0.2:
        return request.replace(b"Content-Length", b"Transfer-Encoding: chunked\r\nX")
    if kind < 0.3:
        return request.replace(b"Bearer ", rng.choice([b"", b"Basic ", b"Bearer x", b"Bearer \xff"]))
    if kind < 0.4:
        return request.replace(b"Host: x", rng.choice([b"Host: " + b"y" * 20_000, b"A: b\r\n" * 300, b"\x00: \x01"]))
    if kind < 0.5:
        return request.replace(
            b"POST /v1/chat/completions", rng.choice([b"PUT /", b"GET /v1/models/../%00", b"POST //"])
        )
    return request


@pytest.mark.slow
def test_ten_thousand_hostile_requests_change_nothing():
    async def send(agent: Agent, seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(NUM_REQUESTS // AT_ONCE):
            reader, writer = await raw(agent, bytes_of(rng, agent), ends=rng.random() < 0.5)
            with suppress(TimeoutError, ConnectionError, ValueError):
                async with asyncio.timeout(0.02 if rng.random() < 0.2 else 2.0):
                    await reader.readline()
            writer.transport.abort()

    async def use(agent: Agent) -> None:
        hostile = [asyncio.ensure_future(send(agent, seed)) for seed in range(AT_ONCE)]
        player, num_good = ScriptedPlayer(), 0
        async with agent.endpoint.keys.registered(player) as (key, _):
            good = Agent(agent.session, agent.endpoint, key, agent.registration)
            while not all(task.done() for task in hostile):
                status, answer = await good.post(asked(str(num_good)))
                num_good += 1
                content = "hello" if num_good == 1 else f"hello {num_good}"
                assert status == 200 and answer["choices"][0]["message"]["content"] == content
                await asyncio.sleep(0.01)
        for task in hostile:
            task.result()
        assert num_good > 10
        await until(lambda: agent.endpoint.num_connections <= 2)

    serve(use, receive_seconds=2.0)
