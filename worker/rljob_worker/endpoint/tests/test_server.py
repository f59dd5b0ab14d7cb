"""The server over real sockets: who may call, what comes back, repetitions, and clients that misbehave."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import replace

import numpy as np
import pytest

from rljob_worker.endpoint.calls import ChatCall, LikelyTokens, PartialTurn, RequestRefused
from rljob_worker.endpoint.sampling_rules import SamplingRules
from rljob_worker.endpoint.server import MOST_BODY_BYTES
from rljob_worker.endpoint.tests.serving import Agent, ScriptedPlayer, asked, raw, request_bytes, serve, until


def events(text: str) -> list:
    return [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: {")]


def test_a_chat_call_is_answered_as_openai_answers():
    player = ScriptedPlayer()

    async def use(agent):
        status, body = await agent.post(asked(temperature=0.3, logprobs=True, max_tokens=9, return_token_ids=True))
        (choice,) = body["choices"]
        assert (status, body["object"], body["model"]) == (200, "chat.completion", "actor")
        assert choice["message"] == {"role": "assistant", "content": "hello", "refusal": None}
        assert [item["token"] for item in choice["logprobs"]["content"]] == ["he", "llo"]
        assert [item["logprob"] for item in choice["logprobs"]["content"]] == [-0.5, -0.25]
        assert (choice["finish_reason"], choice["token_ids"], body["prompt_token_ids"]) == ("stop", [7, 8], [1, 2, 3])
        assert body["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
        assert player.calls == [
            ChatCall([{"role": "user", "content": "hi"}], (), 9, wants_log_probs=True, wants_token_ids=True)
        ]

    serve(use, player)


LIKELY = LikelyTokens(
    np.array([[7, 4], [5, 8]], np.int32),
    np.array([[-0.5, -1.0], [-0.125, -np.inf]], np.float32),
    {7: b"he", 4: b"h\xc3", 5: b"y", 8: b"llo"},
)


class Likely(ScriptedPlayer):
    async def _answer(self, call):
        return replace(await super()._answer(call), likely=LIKELY if call.top_log_probs else None)


def test_likely_tokens_are_answered_as_openai_answers_and_a_retry_gets_the_same():
    player, rules = Likely(), SamplingRules(gives_top_log_probs=True)
    first, second = (
        [("he", -0.5, [104, 101]), ("h\ufffd", -1.0, [104, 195])],
        [("y", -0.125, [121]), ("llo", -9999.0, [108, 108, 111])],
    )

    async def use(agent):
        body = asked(logprobs=True, top_logprobs=2)
        _, answer = await agent.post(body)
        content = answer["choices"][0]["logprobs"]["content"]
        entries = [[(t["token"], t["logprob"], t["bytes"]) for t in item["top_logprobs"]] for item in content]
        assert entries == [first, second] and [item["logprob"] for item in content] == [-0.5, -0.25]
        _, again = await agent.post(body, x_stainless_retry_count="1")
        assert again["choices"] == answer["choices"] and len(player.calls) == 1
        _, text = await agent.post(body | {"stream": True})
        (of_stream,) = (c["choices"][0]["logprobs"] for c in events(text) if c["choices"][0]["logprobs"])
        assert of_stream["content"] == content
        _, plain = await agent.post(asked(logprobs=True, top_logprobs=0))
        assert all(item["top_logprobs"] == [] for item in plain["choices"][0]["logprobs"]["content"])
        sent = {"token_ids": [1], "sampling_params": {"logprobs": 2}}
        _, answer = await agent.post(sent, path="/inference/v1/generate")
        tops = [item["top_logprobs"] for item in answer["choices"][0]["logprobs"]["content"]]
        assert [[item["token_id"] for item in top] for top in tops] == [[7, 4], [5, 8]]
        assert tops[1][1] == {"token_id": 8, "token": "token_id:8", "logprob": -9999.0}
        assert [call.top_log_probs for call in player.calls] == [2, 2, 0, 2]

    serve(use, player, rules=rules)


def test_a_stream_says_role_words_reason_and_usage():
    async def use(agent):
        status, text = await agent.post(asked(stream=True, stream_options={"include_usage": True}))
        chunks = events(text)
        assert status == 200 and text.endswith("data: [DONE]\n\n")
        assert [c["choices"][0]["delta"] for c in chunks[:3]] == [
            {"role": "assistant", "content": ""},
            {"content": "hello"},
            {},
        ]
        assert chunks[2]["choices"][0]["finish_reason"] == "stop" and chunks[3]["usage"]["total_tokens"] == 5

    serve(use)


def test_a_stream_says_words_as_they_come_and_a_repetition_of_it_all_of_them():
    gate = asyncio.Event()

    class Speaking(ScriptedPlayer):
        async def chat(self, call, say=None):
            say(PartialTurn("well", "he"))
            await gate.wait()
            return replace(await super().chat(call), reasoning="well, then")

    async def use(agent):
        body = request_bytes(agent, json.dumps(asked(stream=True)).encode())
        reader, writer = await raw(agent, body)
        await reader.readuntil(b'"delta": {"content": "he"}')
        other, others_writer = await raw(agent, body)
        await until(lambda: agent.registration.calls.num_waiting == 2)
        gate.set()
        rest, whole = (await reader.readuntil(b"[DONE]")).decode(), (await other.readuntil(b"[DONE]")).decode()
        deltas = [event["choices"][0]["delta"] for event in events(rest)]
        assert deltas == [{"reasoning_content": ", then"}, {"content": "llo"}, {}]
        said = [event["choices"][0]["delta"] for event in events(whole)]
        assert "".join(delta.get("content") or "" for delta in said) == "hello"
        assert "".join(delta.get("reasoning_content") or "" for delta in said) == "well, then"
        for item in (writer, others_writer):
            item.close()

    serve(use, Speaking())


def test_a_stream_that_waits_says_that_the_server_is_there_and_a_late_refusal_is_an_event():
    gate = asyncio.Event()

    class Refusing(ScriptedPlayer):
        async def chat(self, call, say=None):
            await gate.wait()
            raise RequestRefused("no more turns")

    async def use(agent):
        reader, writer = await raw(agent, request_bytes(agent, json.dumps(asked(stream=True)).encode()))
        await reader.readuntil(b": waiting\n\n")
        gate.set()
        text = (await reader.read()).decode()
        assert "no more turns" in text and "[DONE]" not in text
        writer.close()

    serve(use, Refusing(), alive_seconds=0.01)


def test_tokens_go_in_and_come_out_with_log_probs():
    player = ScriptedPlayer()

    async def use(agent):
        body = {"token_ids": [4, 5], "sampling_params": {"max_tokens": 6, "logprobs": 1}, "request_id": "mine"}
        status, answer = await agent.post(body, "/inference/v1/generate")
        (choice,) = answer["choices"]
        assert (status, answer["request_id"], choice["token_ids"], choice["finish_reason"]) == (
            200,
            "mine",
            [7, 8],
            "stop",
        )
        assert [(item["token_id"], item["token"], item["logprob"]) for item in choice["logprobs"]["content"]] == [
            (7, "token_id:7", -0.5),
            (8, "token_id:8", -0.25),
        ]
        assert (player.calls[0].token_ids, player.calls[0].max_tokens) == ([4, 5], 6)

    serve(use, player)


def test_models_are_listed_and_others_are_unknown():
    async def use(agent):
        headers = {"Authorization": f"Bearer {agent.key}"}
        async with agent.session.get(f"{agent.endpoint.base_url}/models", headers=headers) as response:
            assert [item["id"] for item in (await response.json())["data"]] == ["actor", "gpt-4o"]
        for body in (asked() | {"model": "gpt-9"}, asked() | {"model": None}):
            status, answer = await agent.post(body)
            assert (status, answer["error"]["code"]) == (404, "model_not_found")
            assert "there is actor, gpt-4o" in answer["error"]["message"]
        assert agent.registration.last_refusal == answer["error"]["message"]
        assert (await agent.post({}, "/responses"))[0] == 404
        assert (await agent.post(asked() | {"model": "gpt-4o"}))[0] == 200 and agent.registration.last_refusal is None

    serve(use)


def test_a_key_is_long_belongs_to_one_agent_and_dies_with_it():
    async def use(agent: Agent):
        other = ScriptedPlayer()
        async with agent.endpoint.keys.registered(other) as (key, _):
            assert len(key) >= 43 and key != agent.key  # 32 bytes in base64: 256 bits
            mine, agent.key = agent.key, key
            assert (await agent.post(asked()))[0] == 200 and len(other.calls) == 1
        for stranger in (key, mine[:-1], mine + "x", "", "ключ", "x" * 5000):
            agent.key = stranger
            status, answer = await agent.post(asked())
            assert status in (400, 401), stranger  # 400: more than a header may have
        assert not agent.registration.player.calls

    serve(use)


def test_nothing_of_a_key_is_logged(caplog):
    async def use(agent):
        with caplog.at_level(logging.DEBUG):
            await agent.post(b"{", "/nothing?key=" + agent.key)
            reader, writer = await raw(agent, b"GARBAGE \x00 " + agent.key.encode() + b"\r\n\r\n")
            assert b" 400 " in await reader.readline()
            writer.close()
        assert agent.key not in caplog.text

    serve(use)


@pytest.mark.parametrize("headers", [{}, {"x_stainless_retry_count": "1"}, {"Idempotency_Key": "a"}])
def test_a_repetition_under_way_gets_the_same_answer(headers):
    gate = asyncio.Event()
    player = ScriptedPlayer(gate)

    async def use(agent):
        first = asyncio.ensure_future(agent.post(asked(), **({} if "x_stainless_retry_count" in headers else headers)))
        await until(lambda: player.calls)
        second = asyncio.ensure_future(agent.post(asked(), **headers))
        await until(lambda: agent.registration.calls.num_waiting == 2)
        gate.set()
        answers = [(await item)[1]["choices"][0]["message"]["content"] for item in (first, second)]
        assert answers == ["hello", "hello"] and len(player.calls) == 1

    serve(use, player)


def test_an_answered_call_is_repeated_by_a_marked_retry_alone():
    player = ScriptedPlayer()

    async def use(agent):
        async def said(**headers):
            return (await agent.post(asked(), **headers))[1]["choices"][0]["message"]["content"]

        assert [await said(x_stainless_retry_count=n) for n in ("0", "1", "2")] == ["hello"] * 3
        assert [await said(), await said(x_stainless_retry_count="0")] == ["hello 2", "hello 3"]
        assert [await said(Idempotency_Key="a"), await said(Idempotency_Key="a")] == ["hello 4"] * 2
        status, answer = await agent.post(asked("other"), Idempotency_Key="a")
        assert (status, answer["error"]["code"]) == (409, "conflict")

    serve(use, player)


def test_equal_calls_that_are_counted_as_first_are_turns_of_their_own():
    gate = asyncio.Event()
    player = ScriptedPlayer(gate)

    async def use(agent):
        calls = [asyncio.ensure_future(agent.post(asked(), x_stainless_retry_count="0")) for _ in range(2)]
        await until(lambda: len(player.calls) == 2)
        gate.set()
        assert {(await call)[1]["choices"][0]["message"]["content"] for call in calls} == {"hello", "hello 2"}

    serve(use, player)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_went_away_frees_its_call(stream):
    player = ScriptedPlayer(asyncio.Event())

    async def use(agent):
        _, writer = await raw(agent, request_bytes(agent, json.dumps(asked(stream=stream)).encode()))
        await until(lambda: player.calls)
        writer.close()
        await until(lambda: player.num_cancelled == 1)

    serve(use, player)


def test_a_call_that_outlives_its_trajectory_is_refused_and_one_that_waits_too_long_may_come_again():
    async def use(agent):
        player = ScriptedPlayer(asyncio.Event())
        async with agent.endpoint.keys.registered(player) as (key, _):
            agent.key = key
            call = asyncio.ensure_future(agent.post(asked()))
            await until(lambda: player.calls)
        status, answer = await call
        assert (status, answer["error"]["code"]) == (409, "over") and player.num_cancelled == 1

    serve(use)

    async def impatient(agent):
        status, answer = await agent.post(asked())
        assert status == 503 and answer["error"]["message"] == "the call was not answered within 0.02 s"
        assert agent.registration.player.num_cancelled == 1

    serve(impatient, ScriptedPlayer(asyncio.Event()), wait_seconds=0.02)


BAD_BODIES = {
    "cut": (b'{"model": "actor"', "not JSON"),
    "list": (b"[]", "not an object"),
    "latin": ('{"model": "é"}'.encode("latin-1"), "not UTF-8"),
    "surrogate": (b'{"model": "\\ud800"}', "lone surrogate"),
    "number": (b'{"model": NaN}', "NaN is not JSON"),
    "long number": (b'{"model": ' + b"9" * 10_000 + b"}", "not JSON"),
    "deep": (b'{"a": ' + b"[" * 70 + b"]" * 70 + b"}", "inside each other"),
    "very deep": (b"[" * 1_000_000, "inside each other"),
    "empty": (b"", "not JSON"),
}


def test_bad_bodies_are_refused_in_words_and_the_next_call_is_answered():
    async def use(agent):
        for name, (body, message) in BAD_BODIES.items():
            status, answer = await agent.post(body)
            assert status == 400 and message in answer["error"]["message"], name
        status, answer = await agent.post(b'{"a": "' + b"x" * MOST_BODY_BYTES + b'"}')
        assert status == 413 and "16777216 bytes" in answer["error"]["message"]
        assert (await agent.post(asked()))[0] == 200

    serve(use)


def test_clients_that_are_slow_lose_their_connection():
    player = ScriptedPlayer()

    async def use(agent):
        # headers that do not end; a body that does not come; a body that is cut off
        reader, writer = await raw(agent, b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nA: ")
        assert await reader.read() == b""
        _, slow = await raw(agent, request_bytes(agent, b"{", length=100))
        _, cut = await raw(agent, request_bytes(agent, b"{", length=100), ends=True)
        await until(lambda: agent.registration.last_refusal is not None)
        assert "was not there after 0.3 s" in agent.registration.last_refusal
        assert (await agent.post(asked()))[0] == 200
        for item in (writer, slow, cut):
            item.close()

    serve(use, player, receive_seconds=0.3)


def test_a_stream_that_is_never_read_ends():
    class Talkative(ScriptedPlayer):
        async def chat(self, call, say=None):
            answer = await super().chat(call)
            return replace(answer, content="x" * (16 << 20))  # more than buffers of sockets take

    async def use(agent):
        body = json.dumps(asked(stream=True)).encode()
        reader, writer = await raw(agent, request_bytes(agent, body))
        await until(
            lambda: len(asyncio.all_tasks()) > 1 and not reader.at_eof() and writer.transport.is_reading() is False
        )
        # the reader here stops at its own limit, and the server gives up; what is left ends without its end
        await until(lambda: not agent.endpoint.num_connections)
        assert b"[DONE]" not in await reader.read()
        writer.close()

    serve(use, Talkative(), receive_seconds=0.3)
