"""A user that a model plays: who says what to it, when it is done, and a server that answers otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from rljob_worker.conversations.simulated_user import SimulatedUser, filled, message_of


def asked(answers: list[str], use: Callable[[SimulatedUser], Awaitable[Any]]) -> list[dict[str, Any]]:
    """What a server with these answers was asked."""
    requests: list[dict[str, Any]] = []

    async def answer(request: web.Request) -> web.Response:
        requests.append(await request.json() | {"token": request.headers.get("Authorization")})
        return web.json_response({"choices": [{"message": {"content": answers[len(requests) - 1]}}]})

    async def run() -> None:
        application = web.Application()
        application.router.add_post("/v1/chat/completions", answer)
        runner = web.AppRunner(application)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            port = runner.addresses[0][1]
            await use(SimulatedUser(f"http://127.0.0.1:{port}", "user", "You want {item}."))
        finally:
            await runner.cleanup()

    asyncio.run(run())
    return requests


def test_the_policy_is_the_user_of_the_model_that_plays_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_TOKEN", "secret")

    async def use(user: SimulatedUser) -> None:
        assert await user.reset(7, item="tea") == "Have you tea?"
        assert await user.step("Green or black?") == ("Black.", 0.0, False)
        assert await user.step("Here you are.") == ("Thanks.", 0.0, True)

    requests = asked(["Have you tea?", "<think>which</think>\n\nBlack.", "Thanks. DONE"], use)
    assert [message["content"] for message in requests[2]["messages"]] == [
        "You want tea.",
        "Begin: write your first message.",
        "Have you tea?",
        "Green or black?",
        "Black.",
        "Here you are.",
    ]
    assert [message["role"] for message in requests[2]["messages"]][2:] == ["assistant", "user"] * 2
    assert (requests[0]["seed"], requests[0]["model"], requests[0]["token"]) == (7, "user", "Bearer secret")


def test_a_server_that_is_not_there_is_named() -> None:
    with pytest.raises(RuntimeError, match="the model at http://127.0.0.1:9/v1/chat/completions cannot be reached"):
        asyncio.run(SimulatedUser("http://127.0.0.1:9", "user", "").reset(7))


@pytest.mark.parametrize("body", ["", "no JSON", "{}", '{"choices": []}', "[]"])
def test_another_answer_is_an_error_with_its_beginning(body: str) -> None:
    with pytest.raises(RuntimeError, match="with status 500 and no message: "):
        message_of(500, body)


def test_a_column_that_rows_have_not_is_named() -> None:
    with pytest.raises(ValueError, match="ask for the column 'item', and rows have name: name it under"):
        filled("You want {item}.", {"name": "Ada"})
