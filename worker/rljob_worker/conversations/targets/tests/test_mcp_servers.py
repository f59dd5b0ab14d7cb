"""Servers of the Model Context Protocol: what they answer, and what it costs when they end or change."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_api.v1alpha1.conversation import ConversationSpec, MCPServerSpec
from rljob_worker.conversations.targets import mcp_connection
from rljob_worker.conversations.targets.mcp_servers import MCPServers, require_package
from rljob_worker.errors import InvalidJob
from rljob_worker.sandbox.targets import Answer

HERE = Path(__file__).parent
PROGRAM = [sys.executable, str(HERE / "mcp_tools.py")]
TOOLS = [
    "add", "fail", "crash", "end", "sleep", "picture", "long", "noise", "variable", "read", "take", "change",
    "multiply",
]  # fmt: skip
Use = Callable[[MCPServers, dict[str, Any]], Awaitable[Any]]


def spec(folder: Path, **fields: Any) -> MCPServerSpec:
    where = {} if "url" in fields else {"command": [*PROGRAM, str(folder)]}
    return MCPServerSpec.model_validate({"name": "s", "timeoutSeconds": TEST_TIMEOUT_SECONDS, **where, **fields})


def opened(servers: list[MCPServerSpec], use: Use, environment: dict[str, str] | None = None, **fields: Any) -> Any:
    conversation = ConversationSpec(mcp_servers=tuple(servers), **{"confinement": "Off", **fields})

    async def run() -> Any:
        connected = MCPServers(conversation, {"PATH": os.defpath, **(environment or {})}, [str(HERE)])
        try:
            return await use(connected, await connected.open())
        finally:
            await connected.close()

    return asyncio.run(run())


async def call(servers: MCPServers, tool: str, **arguments: Any) -> Answer:
    return await servers.call("session", "mcp:s", tool, arguments, "0/0/0")


async def failure(servers: MCPServers, tool: str, **arguments: Any) -> tuple[str, str]:
    error = (await call(servers, tool, **arguments)).error
    assert error is not None
    return error.cause, error.message


def test_tools_of_a_server_of_this_machine_are_called(tmp_path: Path) -> None:
    async def use(servers: MCPServers, handles: dict[str, Any]) -> None:
        assert list(handles) == TOOLS
        function = handles["add"].schema["function"]
        assert (function["name"], function["description"]) == ("add", "Adds.")
        assert function["parameters"]["required"] == ["a", "b"]
        assert (handles["add"].target, handles["add"].method) == ("mcp:s", "add")
        answer = await call(servers, "add", a=1, b=2)
        assert answer.value == "3" and answer.seconds > 0
        # at once over one connection
        assert [one.value for one in await asyncio.gather(*(call(servers, "add", a=i, b=0) for i in range(9)))] == [
            str(i) for i in range(9)
        ]
        # what goes wrong in a tool is for the model to read
        cause, message = await failure(servers, "fail", why="because")
        assert cause == "Raised" and "because" in message
        assert (await failure(servers, "add", a="x", b=1))[0] == "Raised"
        assert (await failure(servers, "absent"))[0] == "Raised"
        # an error of the protocol, too: the server goes on, and so do calls beside it
        pid = (tmp_path / "pid").read_text()
        assert await failure(servers, "crash") == ("Raised", "no such page")
        assert (await call(servers, "add", a=1, b=2)).value == "3" and (tmp_path / "pid").read_text() == pid
        (part,) = (await call(servers, "picture")).value
        assert part["type"] == "image_url" and part["image_url"]["url"].startswith("data:image/png;base64,")
        assert (await failure(servers, "long"))[0] == "OutputTooLarge"
        # what it prints besides messages is left alone
        assert (await call(servers, "noise")).value == "done"
        # of the worker's variables a server sees those that the job names
        assert (await call(servers, "variable", name="SHOWN")).value == "yes"
        assert (await call(servers, "variable", name="HIDDEN")).value == "unset"

    shown = spec(tmp_path, environmentVariables=["SHOWN"])
    opened([shown], use, {"SHOWN": "yes", "HIDDEN": "secret"})


@pytest.mark.slow
def test_a_server_that_ends_costs_the_call_and_is_started_again(tmp_path: Path) -> None:
    async def use(servers: MCPServers, handles: dict[str, Any]) -> None:
        before = (tmp_path / "pid").read_text()
        cause, message = await failure(servers, "end")
        assert cause == "Died"
        assert message == 'server "s" has ended or restarted: exit code 3'
        assert (await call(servers, "add", a=1, b=2)).value == "3"
        assert (tmp_path / "pid").read_text() != before

    opened([spec(tmp_path)], use)


@pytest.mark.slow
def test_a_tool_that_is_another_one_after_a_restart_is_an_error(tmp_path: Path) -> None:
    async def use(servers: MCPServers, handles: dict[str, Any]) -> None:
        (tmp_path / "changed").touch()
        await failure(servers, "end")
        assert await failure(servers, "multiply", a=1, b=2) == (
            "Died",
            "server \"s\" has changed its tool 'multiply' since the job began; start the job again",
        )
        # the others are as they were
        assert (await call(servers, "add", a=1, b=2)).value == "3"

    opened([spec(tmp_path)], use)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seconds", "arguments"), [(60.0, {"a": "x"}), (0.0, {"a": 1, "b": 2})], ids=["refuses", "answers"]
)
def test_a_tool_that_a_server_changes_while_it_runs_is_an_error(
    tmp_path: Path, monkeypatch: Any, seconds: float, arguments: dict[str, Any]
) -> None:
    """At once where the other one refuses the call, else when tools are compared the next time."""
    monkeypatch.setattr(mcp_connection, "COMPARED_SECONDS", seconds)

    async def use(servers: MCPServers, handles: dict[str, Any]) -> None:
        assert (await call(servers, "change")).value == "changed"
        cause, message = await failure(servers, "multiply", **arguments)
        assert cause == "Died" and message.startswith("server \"s\" has changed its tool 'multiply' since")
        assert (await call(servers, "add", a=1, b=2)).value == "3"

    opened([spec(tmp_path)], use)


@pytest.mark.usefixtures("confining_kernel")
@pytest.mark.parametrize("mode", ["Required", pytest.param("Off", marks=pytest.mark.slow)])
def test_a_server_that_is_started_is_confined_and_limited(mode: str, tmp_path: Path) -> None:
    index, secret = tmp_path / "index", tmp_path / "secret"
    index.write_text("words")
    secret.write_text("token")

    async def use(servers: MCPServers, handles: dict[str, Any]) -> None:
        assert (await call(servers, "read", path=str(index))).value == "words"
        if mode == "Off":
            assert (await call(servers, "read", path=str(secret))).value == "token"
        else:
            cause, message = await failure(servers, "read", path=str(secret))
            assert cause == "Raised" and "Permission denied" in message
        cause, message = await failure(servers, "take", num_bytes=400 << 20)
        assert cause == "Died" and "used more than 314572800 bytes of memory" in message
        assert (await call(servers, "add", a=1, b=2)).value == "3"

    server = spec(tmp_path, readable=[str(index)], memory="300Mi")
    opened([server.model_copy(update={"command": tuple(PROGRAM)})], use, confinement=mode)


@pytest.mark.slow
def test_a_call_has_a_limit_of_time(tmp_path: Path) -> None:
    async def use(servers: MCPServers, handles: dict[str, Any]) -> None:
        assert await failure(servers, "sleep") == ("TimedOut", 'server "s" took longer than 3 s')

    # long enough for the server to start, which the same limit bounds
    opened([spec(tmp_path, timeoutSeconds=3)], use)


@contextmanager
def serving(folder: Path, *port: str) -> Iterator[str]:
    """The address of a server of its own. port: where it listens; one of the system's choice where there is none."""
    (folder / "port").unlink(missing_ok=True)
    process = subprocess.Popen([*PROGRAM, str(folder), "http", *port], stderr=subprocess.DEVNULL)
    try:
        while not (folder / "port").exists():
            assert process.poll() is None, "the server has ended"
            time.sleep(0.05)
        yield f"http://127.0.0.1:{(folder / 'port').read_text()}/mcp"
    finally:
        process.kill()
        process.wait()


def test_tools_of_a_server_elsewhere_are_called_over_http(tmp_path: Path) -> None:
    async def use(servers: MCPServers, handles: dict[str, Any]) -> None:
        assert list(handles) == ["add", "multiply"]
        assert (await call(servers, "add", a=1, b=2)).value == "3"
        assert (await failure(servers, "fail", why="because"))[0] == "Raised"
        assert await failure(servers, "crash") == ("Raised", "no such page")

    with serving(tmp_path) as url:
        opened([spec(tmp_path, url=url, tools=["add", "multiply"])], use)


@pytest.mark.slow
def test_a_server_elsewhere_that_has_gone_costs_calls_until_it_is_there_again(tmp_path: Path) -> None:
    async def use(servers: MCPServers, handles: dict[str, Any]) -> None:
        assert (await failure(servers, "end"))[0] == "Died"
        cause, message = await failure(servers, "add", a=1, b=2)
        assert cause == "Died" and message.startswith('server "s" cannot be reached: ')
        with serving(tmp_path, (tmp_path / "port").read_text()):
            assert (await call(servers, "add", a=1, b=2)).value == "3"

    with serving(tmp_path) as url:
        opened([spec(tmp_path, url=url)], use)


@pytest.mark.slow
def test_a_tool_of_a_server_elsewhere_that_is_another_one_since_is_an_error(tmp_path: Path, monkeypatch: Any) -> None:
    """The connection shows nothing of it."""
    monkeypatch.setattr(mcp_connection, "COMPARED_SECONDS", 0.0)

    async def use(servers: MCPServers, handles: dict[str, Any]) -> None:
        port = (tmp_path / "port").read_text()
        assert (await call(servers, "multiply", a="x")).value == "xx"
        first.close()
        (tmp_path / "changed").touch()
        with serving(tmp_path, port):
            assert (await call(servers, "add", a=1, b=2)).value == "3"
            cause, message = await failure(servers, "multiply", a=1, b=2)
            assert cause == "Died" and message.startswith("server \"s\" has changed its tool 'multiply' since")

    with ExitStack() as first:
        url = first.enter_context(serving(tmp_path))
        opened([spec(tmp_path, url=url)], use)


def test_a_server_that_is_not_there_is_named(tmp_path: Path) -> None:
    absent = spec(tmp_path, url="http://127.0.0.1:9/mcp")
    with pytest.raises(InvalidJob, match='mcpServers: server "s" cannot be reached: '):
        opened([absent], lambda servers, handles: servers.end(""))
    program = spec(tmp_path).model_copy(update={"command": ("/absent/program",)})
    with pytest.raises(InvalidJob, match='server "s" cannot be reached: FileNotFoundError'):
        opened([program], lambda servers, handles: servers.end(""))


@pytest.mark.slow
def test_tools_that_a_server_has_not_and_names_of_two_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidJob, match="has no tool 'subtract'; it has add, fail"):
        opened([spec(tmp_path, tools=["subtract"])], lambda servers, handles: servers.end(""))
    twice = [spec(tmp_path, tools=["add"]), spec(tmp_path, name="t", tools=["add"])]
    with pytest.raises(InvalidJob, match="\"t\" and another server have a tool 'add'"):
        opened(twice, lambda servers, handles: servers.end(""))


def test_a_token_that_is_not_set_is_named(tmp_path: Path) -> None:
    server = spec(tmp_path, url="http://127.0.0.1:9/mcp", tokenVariable="SEARCH_TOKEN")
    with pytest.raises(InvalidJob, match="tokenVariable SEARCH_TOKEN is not set in the workers' environment"):
        opened([server], lambda servers, handles: servers.end(""))


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(InvalidJob, match=r"pip install 'rljob\[mcp\]'"):
        require_package()
