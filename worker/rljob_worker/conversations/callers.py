"""Tools and environments of a job as targets of calls, each with its limits."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from rljob_api.v1alpha1 import CallLimitsSpec, Confinement, ConversationSpec, EnvironmentSpec, ToolSpec
from rljob_api.vocabulary.quantity import parse_quantity
from rljob_worker.conversations.world import SharedWorld, ToolHandle
from rljob_worker.errors import InvalidJob
from rljob_worker.sandbox.calls import Calls
from rljob_worker.sandbox.targets import Answer, CallLimits, Target

_DESCRIBE = "describe "
"""Name of the target that describes others, which no tool can have."""

_Key = tuple[Confinement, tuple[str, ...]]


class Callers:
    """Calls of targets, each in processes that are confined as the target asks. For one event loop."""

    def __init__(self, conversation: ConversationSpec, processes: int, pythonpath: Sequence[str] = ()) -> None:
        """processes: that the targets of each kind of confinement share."""
        self._calls: dict[str, Calls] = {}
        """By target."""
        for (confinement, network), targets in _by_confinement(conversation).items():
            describe = Target("rljob_worker.conversations.schema:describe", {}, _limits(CallLimitsSpec()))
            calls = Calls(
                targets | {_DESCRIBE: describe},
                processes=processes,
                confinement=confinement,
                network=network,
                pythonpath=pythonpath,
            )
            self._calls |= dict.fromkeys(targets, calls)

    async def check(self) -> None:
        """Wait until every target can be called. Raises InvalidJob."""
        await asyncio.gather(*(calls.check() for calls in self._all()))

    async def call(
        self, session: str, target: str, method: str | None, arguments: Mapping[str, Any], key: str = ""
    ) -> Answer:
        """As `sandbox.calls.Calls`. Raises ValueError for what is no target of the job."""
        calls = self._calls.get(target)
        if calls is None:
            names = ", ".join(self._calls)
            raise ValueError(f"the job has no tool or environment {target!r}; it has {names}")
        return await calls.call(session, target, method, arguments, key)

    async def end(self, session: str) -> None:
        """A trajectory is over."""
        await asyncio.gather(*(calls.end(session) for calls in self._all()))

    def close(self) -> None:
        """End every process."""
        for calls in self._all():
            calls.close()

    async def shared_world(self, conversation: ConversationSpec) -> SharedWorld:
        """What all trajectories share. Raises InvalidJob for a tool that makes no schema."""
        tools: dict[str, ToolHandle] = {}
        for number, tool in enumerate(conversation.tools):
            target = tool_target(number)
            arguments = {"run": tool.run, "options": dict(tool.options), "name": tool.name}
            answer = await self._calls[target].call("", _DESCRIBE, None, arguments)
            if answer.error is not None:
                raise InvalidJob(f"rollout.conversation.tools[{number}]: {answer.error.message}")
            schema = answer.value["schema"]
            tools[schema["function"]["name"]] = ToolHandle(schema, target, answer.value["method"])
        names = tuple(item.name for item in conversation.environments)
        return SharedWorld(conversation.options, tools, names, frozenset(names))

    def _all(self) -> list[Calls]:
        return list(dict.fromkeys(self._calls.values()))


def tool_target(number: int) -> str:
    """What calls a tool of the job, whose name may be that of an environment."""
    return f"tool {number}"


def _by_confinement(conversation: ConversationSpec) -> dict[_Key, dict[str, Target]]:
    groups: dict[_Key, dict[str, Target]] = {}
    named: list[tuple[str, ToolSpec | EnvironmentSpec]] = [
        (tool_target(number), tool) for number, tool in enumerate(conversation.tools)
    ]
    named += [(item.name, item) for item in conversation.environments]
    for name, item in named:
        confinement = conversation.confinement if item.confinement == "Inherit" else item.confinement
        network = conversation.network if item.network is None else item.network
        target = Target(item.run, item.options, _limits(item), environment=item.environment_variables)
        groups.setdefault((confinement, network), {})[name] = target
    return groups


def _limits(spec: CallLimitsSpec) -> CallLimits:
    memory, output = parse_quantity(spec.memory), parse_quantity(spec.max_output)
    return CallLimits(spec.timeout_seconds, memory, spec.max_processes, output)
