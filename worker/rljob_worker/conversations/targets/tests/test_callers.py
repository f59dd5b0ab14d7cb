"""From a spec to tools, environments and servers that answer, in processes of their own."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_api.v1alpha1.conversation import PYTHON_TOOL, ConversationSpec
from rljob_worker.conversations.targets.adapted_environment import episode_target
from rljob_worker.conversations.targets.callers import Callers
from rljob_worker.conversations.world import SharedWorld
from rljob_worker.errors import InvalidJob
from rljob_worker.sandbox.calls.loading import ENCODED_PICTURES
from rljob_worker.tests.waiting import wait_for

FUNCTIONS = "rljob_worker.conversations.targets.tests.user_functions"
ENVIRONMENTS = "rljob_worker.conversations.targets.tests.user_environments"
Use = Callable[[Callers, SharedWorld], Awaitable[Any]]


def spec(**fields: Any) -> ConversationSpec:
    named = {key: fields.get(key, []) for key in ("tools", "environments", "mcpServers")}
    timed = {key: [{"timeoutSeconds": TEST_TIMEOUT_SECONDS, **item} for item in items] for key, items in named.items()}
    return ConversationSpec.model_validate({"confinement": "Off", **fields, **timed})


def opened(conversation: ConversationSpec, use: Use) -> Any:
    async def run() -> Any:
        callers = Callers(conversation, 1)
        try:
            await callers.check()
            return await use(callers, await callers.shared_world(conversation))
        finally:
            await callers.close()

    return asyncio.run(run())


async def nothing(callers: Callers, world: SharedWorld) -> None:
    pass


async def value(callers: Callers, target: str, method: str | None = None, session: str = "s", **arguments: Any) -> Any:
    answer = await callers.call(session, target, method, arguments)
    assert answer.error is None, answer.error
    return answer.value


def test_tools_and_environments_of_a_job_answer() -> None:
    async def use(callers: Callers, world: SharedWorld) -> None:
        find, counter = world.tools["find"], world.tools["counter"]
        # options of the job are no arguments of the model
        assert list(find.schema["function"]["parameters"]["properties"]) == ["text", "most", "kind"]
        assert await value(callers, find.target, text="rain", most=2) == ["books:web:rain"] * 2
        # each trajectory counts from the start
        counted = [await value(callers, counter.target, counter.method, session, by=2) for session in "aab"]
        assert counted == [12, 14, 12]
        down, quick = episode_target("down"), episode_target("quick")
        assert (await value(callers, down, "reset", seed=3, columns={}))["observation"] == "nobody: 3 left"
        assert (await value(callers, quick, "reset", seed=3, columns={}))["observation"] == "begin"
        assert (await value(callers, quick, "step", text="go"))["done"] is True
        # by its name alone, the class itself is called
        assert await value(callers, "down", "reset", seed=3, name="Ada") == "Ada: 3 left"
        assert world.environments == ("down", "quick")
        # what remembers is called again before a new call of a step that is repeated
        assert world.stateful == {counter.target, "down", "quick", down, quick}

    conversation = spec(
        tools=[
            {"run": f"{FUNCTIONS}:search", "name": "find", "options": {"index": "books:"}},
            {"run": f"{FUNCTIONS}:Counter", "options": {"start": 10}},
        ],
        environments=[
            {"name": "down", "run": f"{ENVIRONMENTS}:Tuples"},
            {"name": "quick", "run": f"{ENVIRONMENTS}:Asynchronous"},
        ],
    )
    opened(conversation, use)


def test_the_tool_that_runs_programs_has_a_process_of_its_own_for_each_trajectory(confining_kernel: None) -> None:
    async def use(callers: Callers, world: SharedWorld) -> None:
        python, noted = world.tools["python"], world.tools["noted"]
        assert await value(callers, python.target, session="a", code="x = 3; open('f', 'w').write('y')") == ""
        assert await value(callers, python.target, session="a", code="print(x, open('f').read())") == "3 y\n"
        named = await value(
            callers, python.target, session="b", code="import os; print('x' in globals(), os.listdir())"
        )
        assert named == "False []\n"
        # names go with a process that is ended, and come back where a step is repeated
        assert world.stateful == {python.target} and not python.answers_limits and noted.answers_limits

    opened(spec(confinement="Required", tools=[{"run": PYTHON_TOOL}, {"run": f"{FUNCTIONS}:noted"}]), use)


def test_isolated_tools_and_environments_share_nothing_between_trajectories() -> None:
    async def use(callers: Callers, world: SharedWorld) -> None:
        noted, counted, down = world.tools["left"], world.tools["counted"], episode_target("down")
        folders = []
        for session in "ab":
            files, folder = await value(callers, noted.target, session=session)
            assert files == [] and await value(callers, noted.target, session=session) == [["mark"], folder]
            # a global of the module, in the same process as the file
            assert [await value(callers, counted.target, session=session) for _ in range(2)] == [1, 2]
            assert (await value(callers, down, "reset", session, seed=3, columns={}))["observation"] == "nobody: 3 left"
            folders.append(Path(folder))
            await callers.end(session)
        assert folders[0] != folders[1]
        wait_for(lambda: not any(folder.exists() for folder in folders))
        # shared ones count on
        shared = world.tools["together"]
        assert [await value(callers, shared.target, session=session) for session in "ab"] == [1, 2]
        # a function is not called again where a step is repeated, unless the job says that its calls build on another
        assert world.stateful == {noted.target, "down", down}
        assert shared.answers_limits and counted.answers_limits and not noted.answers_limits

    conversation = spec(
        tools=[
            {"run": f"{FUNCTIONS}:left", "stateful": True},
            {"run": f"{FUNCTIONS}:counted"},
            {"run": f"{FUNCTIONS}:counted", "name": "together", "isolated": False},
        ],
        environments=[{"name": "down", "run": f"{ENVIRONMENTS}:Tuples", "isolated": True}],
    )
    opened(conversation, use)


@pytest.mark.parametrize("isolated", [True, False])
def test_a_tool_has_the_memory_that_the_job_says(isolated: bool) -> None:
    async def use(callers: Callers, world: SharedWorld) -> None:
        answer = await callers.call("s", world.tools["fills"].target, None, {"mebibytes": 400})
        assert answer.error is not None and answer.error.cause == "OutOfMemory"

    opened(spec(tools=[{"run": f"{FUNCTIONS}:fills", "memory": "300Mi", "isolated": isolated}]), use)


def test_tools_are_given_the_pictures_of_the_prompt() -> None:
    pictures: dict[str, Any] = {ENCODED_PICTURES: ["AAEC", "/w=="]}

    async def use(callers: Callers, world: SharedWorld) -> None:
        zoom, magnifier = world.tools["zoom"], world.tools["magnifier"]
        assert zoom.sees and magnifier.sees and not world.tools["noted"].sees
        assert await value(callers, zoom.target, left=2, **pictures) == "2 of [3, 1]"
        looked = [await value(callers, magnifier.target, magnifier.method, **pictures) for _ in range(2)]
        assert looked == ["2 x 000102", "4 x 000102"]

    opened(spec(tools=[{"run": f"{FUNCTIONS}:{name}"} for name in ("zoom", "Magnifier", "noted")]), use)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tools": [{"run": f"{FUNCTIONS}:untyped"}]}, r"tools\[0\]: .*the parameter 'a' has no type"),
        ({"tools": [{"run": f"{FUNCTIONS}:absent"}]}, "does not exist"),
        ({"tools": [{"run": f"{FUNCTIONS}:search", "options": {"indx": 1}}]}, "indx"),
        (
            {"tools": [{"run": f"{FUNCTIONS}:noted"}] * 2},
            "two tools are called 'noted'; give one of them another `name`",
        ),
        ({"environments": [{"name": "x", "run": "absent_module:X"}]}, "absent_module:X cannot be imported"),
        ({"environments": [{"name": "x", "run": f"{ENVIRONMENTS}:made"}]}, "missing a required argument: 'by'"),
        ({"environments": [{"name": "x", "run": f"{FUNCTIONS}:NotCallable"}]}, "needs methods `reset"),
    ],
)
def test_what_cannot_be_called_is_refused_before_the_job_plays(fields: Any, message: str) -> None:
    with pytest.raises(InvalidJob, match=message):
        opened(spec(**fields), nothing)


@pytest.mark.slow
def test_tools_of_servers_are_tools(tmp_path: Path) -> None:
    command = [sys.executable, str(Path(__file__).parent / "mcp_tools.py"), str(tmp_path)]

    async def use(callers: Callers, world: SharedWorld) -> None:
        assert list(world.tools) == ["noted", "add"]
        add = world.tools["add"]
        assert await value(callers, add.target, add.method, a=1, b=2) == "3"
        assert world.stateful == frozenset()

    server = {"name": "s", "command": command, "tools": ["add"]}
    opened(spec(tools=[{"run": f"{FUNCTIONS}:noted"}], mcpServers=[server]), use)
    with pytest.raises(InvalidJob, match="two tools are called 'add'"):
        opened(spec(tools=[{"run": f"{FUNCTIONS}:noted", "name": "add"}], mcpServers=[server]), nothing)
