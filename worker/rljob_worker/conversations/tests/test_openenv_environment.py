"""Environments of an OpenEnv server: one of the package itself, and one that says what that would not."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from rljob_worker.built_once import cache_root
from rljob_worker.conversations.openenv_environment import OpenEnv
from rljob_worker.conversations.targets.adapted_environment import AsyncAdaptedEnvironment

RUN = "rljob_worker.conversations.openenv_environment:OpenEnv"
VERSION = "0.10.0"
"""Of the package, whose pins do not go with ours: it has an environment of its own."""


def answering(answers: list[Any], use: Callable[[str], Awaitable[Any]]) -> list[Any]:
    """What a server that says these things, one after another, was asked; None ends the session."""
    asked: list[Any] = []

    async def session(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        while True:
            asked.append(await socket.receive_json())
            answer = answers[len(asked) - 1]
            if answer is None:
                await socket.close()
                return socket
            await socket.send_json(answer)

    async def run() -> None:
        application = web.Application()
        application.router.add_get("/ws", session)
        runner = web.AppRunner(application, shutdown_timeout=0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            await use(f"http://127.0.0.1:{runner.addresses[0][1]}")
        finally:
            await runner.cleanup()

    asyncio.run(run())
    return asked


def seen(observation: Any, reward: float | None = None, done: bool = False) -> dict[str, Any]:
    return {"type": "observation", "data": {"observation": observation, "reward": reward, "done": done}}


def failed(code: str, message: str) -> dict[str, Any]:
    return {"type": "error", "data": {"code": code, "message": message}}


def test_a_session_is_reset_and_stepped() -> None:
    async def use(url: str) -> None:
        environment = AsyncAdaptedEnvironment(RUN, {"url": url, "action": "message", "observation": "text"})
        assert (await environment.reset(7, {"name": "Ada"}))["observation"] == "look"
        result = await environment.step("left")
        assert result == {"observation": "a wall", "reward": 0.5, "done": True, "metrics": {}}
        await environment.close()

    asked = answering([seen({"text": "look"}), seen({"text": "a wall", "x": 1}, 0.5, True)], use)
    assert asked == [
        {"type": "reset", "data": {"seed": 7, "name": "Ada"}},
        {"type": "step", "data": {"message": "left"}},
    ]


def test_actions_may_be_written_as_json_and_bad_ones_are_for_the_model_to_read() -> None:
    async def use(url: str) -> None:
        environment = OpenEnv(url)
        await environment.reset(7)
        for text, fault in (("left", "error: the action is not JSON: "), ("[1]", "error: the action is not a JSON")):
            result = await environment.step(text)
            assert result["observation"].startswith(fault)
            assert (result["reward"], result["done"], result["metrics"]) == (0.0, False, {"bad_actions": 1})
        assert (await environment.step('{"x": "y"}'))["observation"] == "error: x is not a number"
        assert (await environment.step('{"x": 1}'))["observation"] == {"text": "ok"}
        await environment.close()

    asked = answering([seen({}), failed("VALIDATION_ERROR", "x is not a number"), seen({"text": "ok"})], use)
    assert [message["data"] for message in asked[1:]] == [{"x": "y"}, {"x": 1}]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (failed("EXECUTION_ERROR", "out of cards"), "out of cards"),
        (None, "has ended the session"),
        (seen({"board": 1}), "an observation has no 'text'; it has board"),
    ],
)
def test_what_goes_wrong_in_the_server_is_an_error_with_its_address(answer: Any, message: str) -> None:
    async def use(url: str) -> None:
        environment = OpenEnv(url, observation="text")
        with pytest.raises((RuntimeError, ConnectionError), match=f"OpenEnv server {url}.*{message}"):
            await environment.reset(7)
        await environment.close()

    answering([answer], use)


def test_a_server_that_is_not_there_is_named() -> None:
    async def use() -> None:
        environment = OpenEnv("http://127.0.0.1:9")
        with pytest.raises(ConnectionError, match="OpenEnv server http://127.0.0.1:9 cannot be reached"):
            await environment.reset(7)
        await environment.close()

    asyncio.run(use())


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The address of a server that the package runs."""
    program = [str(python_with_openenv()), str(Path(__file__).parent / "openenv_server.py"), str(folder)]
    process = subprocess.Popen(program, env={"PATH": os.environ["PATH"], "HOME": str(folder)})
    try:
        while not (folder / "port").exists():
            assert process.poll() is None, "the server has ended"
            time.sleep(0.05)
        yield f"http://127.0.0.1:{(folder / 'port').read_text()}"
    finally:
        process.kill()
        process.wait()


def python_with_openenv() -> Path:
    """The interpreter of an environment with the package, made once for all checkouts of a user."""
    environment = cache_root() / f"openenv-{VERSION}"
    uv = [sys.executable, "-m", "uv"]
    if not (environment / "installed").exists():
        subprocess.run(
            [*uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, environment], check=True
        )
        install = [*uv, "pip", "install", "--quiet", "--python", environment, f"openenv=={VERSION}"]
        subprocess.run(install, check=True)
        (environment / "installed").touch()
    return environment / "bin" / "python"


@pytest.mark.slow
def test_a_server_of_the_package_is_played(tmp_path: Path) -> None:
    async def play(url: str) -> None:
        options = {"url": url, "action": "number", "observation": "text"}
        first, second = (AsyncAdaptedEnvironment(RUN, options) for _ in range(2))
        assert (await first.reset(7, {"name": "Ada"}))["observation"] == "guess, Ada"
        # a session of its own
        await second.reset(2, {})
        assert (await first.step("5")) == {"observation": "higher", "reward": -0.25, "done": False, "metrics": {}}
        assert (await second.step("5"))["observation"] == "lower"
        bad = await first.step("seven")
        assert bad["observation"].startswith("error: ") and bad["metrics"] == {"bad_actions": 1.0}
        assert (await first.step("7")) == {"observation": "right", "reward": 1.0, "done": True, "metrics": {}}
        await first.close()
        await second.close()

    with serving(tmp_path) as url:
        asyncio.run(play(url))
