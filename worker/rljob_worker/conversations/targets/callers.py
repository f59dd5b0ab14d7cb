"""Tools, environments and servers of a job as targets of calls, each with its limits."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rljob_api.v1alpha1 import CallLimitsSpec, Confinement, ConversationSpec, EnvironmentSpec, ToolSpec
from rljob_api.vocabulary.quantity import parse_quantity
from rljob_worker.conversations.targets.adapted_environment import episode_target
from rljob_worker.conversations.targets.mcp_servers import MCPServers
from rljob_worker.conversations.world import SharedWorld, ToolHandle
from rljob_worker.errors import InvalidJob
from rljob_worker.sandbox.calls.calls import Calls
from rljob_worker.sandbox.targets import Answer, CallLimits, Target

_DESCRIPTION_SECONDS, _DESCRIPTION_BYTES = 600.0, 1 << 22
"""Limits of reading a tool's types: what it imports is imported before."""
_HERE = "rljob_worker.conversations.targets"
_DESCRIBES = {
    "describe tool": f"{_HERE}.schema:describe",
    "describe environment": f"{_HERE}.adapted_environment:is_asynchronous",
}
"""Targets that describe others; no environment can have such a name."""
_DESCRIBING = "describing"
"""The session in which they are called."""
_ADAPTERS = {False: "AdaptedEnvironment", True: "AsyncAdaptedEnvironment"}
"""By whether the environment's methods are asynchronous."""

_Key = tuple[Confinement, tuple[str, ...], tuple[str, ...]]
"""Confinement, network and readable paths, which processes share."""


class Callers:
    """Calls of targets, each in processes that are confined as the target asks. For one event loop."""

    def __init__(self, conversation: ConversationSpec, processes: int, pythonpath: Sequence[str] = ()) -> None:
        """processes: that the targets of each kind of confinement share."""
        self._calls: dict[str, Calls | MCPServers] = {}
        """By target."""
        self._adapted: dict[str, str] = {}
        """Targets of episodes, by what `episode_target` calls them."""
        self._servers = MCPServers(conversation, os.environ, pythonpath) if conversation.mcp_servers else None
        for (confinement, network, _), targets in _by_confinement(conversation).items():
            calls = Calls(
                targets | _describing(targets.values()),
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
        target = self._adapted.get(target, target)
        calls = self._calls.get(target)
        if calls is None:
            raise ValueError(f"the job has no tool or environment {target!r}")
        return await calls.call(session, target, method, arguments, key)

    async def end(self, session: str) -> None:
        """A trajectory is over."""
        await asyncio.gather(*(calls.end(session) for calls in self._all()))

    async def close(self) -> None:
        """End every process and leave every server."""
        for calls in self._all():
            calls.close()
        if self._servers is not None:
            await self._servers.close()

    async def shared_world(self, conversation: ConversationSpec) -> SharedWorld:
        """What all trajectories share. Raises InvalidJob for a tool that makes no schema, a class that is no
        environment, a server that cannot be reached, and a name that two tools have."""
        tools: dict[str, ToolHandle] = {}
        remember = set[str]()
        for number, tool in enumerate(conversation.tools):
            target = tool_target(number)
            described = await self._described(f"tools[{number}]", "describe tool", target, tool)
            method = described["method"]
            forgets = method is None and not tool.is_stateful
            answers = tool.on_limit == "Answer" or (tool.on_limit == "Auto" and forgets)
            _add(tools, ToolHandle(described["schema"], target, method, answers, described["sees"]))
            remember |= set() if forgets else {target}
        for number, item in enumerate(conversation.environments):
            field = f"environments[{number}]"
            is_asynchronous = await self._described(field, "describe environment", item.name, item)
            self._adapted[episode_target(item.name)] = f"{item.name} {_ADAPTERS[is_asynchronous]}"
        await self.end(_DESCRIBING)
        if self._servers is not None:
            for of_server in (await self._servers.open()).values():
                self._calls[of_server.target] = self._servers
                _add(tools, ToolHandle(of_server.schema, of_server.target, of_server.method, of_server.answers_limits))
        names = tuple(item.name for item in conversation.environments)
        stateful = frozenset({*names, *self._adapted, *remember})
        return SharedWorld(conversation.options, tools, names, stateful=stateful)

    async def _described(self, field: str, describe: str, target: str, item: ToolSpec | EnvironmentSpec) -> Any:
        arguments = {"run": item.run, "options": dict(item.options), "name": item.name}
        answer = await self._calls[target].call(_DESCRIBING, describe, None, arguments)
        if answer.error is not None:
            raise InvalidJob(f"rollout.conversation.{field}: {answer.error.message}")
        return answer.value

    def _all(self) -> list[Calls]:
        return list(dict.fromkeys(calls for calls in self._calls.values() if isinstance(calls, Calls)))


def _add(tools: dict[str, ToolHandle], handle: ToolHandle) -> None:
    name = handle.schema["function"]["name"]
    if name in tools:
        raise InvalidJob(f"rollout.conversation: two tools are called {name!r}; give one of them another `name`")
    tools[name] = handle


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
        confinement, network = conversation.confinement_of(item), tuple(conversation.network_of(item))
        target = Target(
            item.run,
            item.options,
            _limits(item),
            isolated=item.isolated,
            stateful=isinstance(item, ToolSpec) and item.is_stateful,
            environment=item.environment_variables,
            readable=item.readable,
        )
        group = groups.setdefault((confinement, network, item.readable), {})
        group[name] = target
        if isinstance(item, EnvironmentSpec):
            options = {"run": item.run, "options": dict(item.options)}
            for adapter in _ADAPTERS.values():
                adapted = f"{_HERE}.adapted_environment:{adapter}"
                group[f"{name} {adapter}"] = replace(target, run=adapted, options=options)
    return groups


def _describing(targets: Collection[Target]) -> dict[str, Target]:
    """What describes targets, in processes that there are for them anyway, with their limits."""
    limits = CallLimits(
        _DESCRIPTION_SECONDS,
        max(target.limits.memory_bytes for target in targets),
        max(target.limits.processes for target in targets),
        _DESCRIPTION_BYTES,
    )
    isolated = all(target.isolated for target in targets)
    return {name: Target(run, {}, limits, isolated=isolated) for name, run in _DESCRIBES.items()}


def _limits(spec: CallLimitsSpec) -> CallLimits:
    memory, output = parse_quantity(spec.memory), parse_quantity(spec.max_output)
    return CallLimits(spec.timeout_seconds, memory, spec.max_processes, output)
