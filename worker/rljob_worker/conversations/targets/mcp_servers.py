"""Tools of servers that speak the Model Context Protocol, over standard input and output or over HTTP.

A worker has one connection to each server, for all trajectories. A server that ends or cannot be reached costs the
trajectories that call it meanwhile; the next call connects again. The tools of a job are those that a server had at the
start: one that a server has changed since, while it ran or when it began again, is an error of every call of it.
Servers that are started here are confined and limited as tools are.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rljob_api.v1alpha1.conversation import ConversationSpec, MCPServerSpec
from rljob_api.vocabulary.quantity import parse_quantity
from rljob_worker.conversations.targets.mcp_connection import MCPConnection
from rljob_worker.errors import InvalidJob
from rljob_worker.sandbox.calls.programs import ProgramSettings
from rljob_worker.sandbox.targets import Answer

PREFIX = "mcp:"
"""What targets of servers begin with."""


@dataclass(frozen=True, slots=True)
class ServerTool:
    """A tool of a server."""

    schema: dict[str, Any]
    """As chat templates take it."""
    target: str
    """What is called."""
    method: str
    """The tool's name."""
    answers_limits: bool
    """Whether the model reads of a call that took too long, and goes on."""


class MCPServers:
    """The servers of a job, as a caller of their tools. For one event loop."""

    def __init__(
        self, conversation: ConversationSpec, environment: Mapping[str, str], pythonpath: Sequence[str] = ()
    ) -> None:
        """environment: of the worker, of which servers get the variables that the job names."""
        self._connections = {
            server.name: MCPConnection(server, environment, _program(conversation, server), pythonpath)
            for server in conversation.mcp_servers
        }

    async def open(self) -> dict[str, ServerTool]:
        """Connect to all of them: their tools by name. Raises InvalidJob for a server that cannot be reached or has not
        the tools that the job names, for a name that two have, and without the package `mcp`."""
        require_package()
        handles: dict[str, ServerTool] = {}
        for name, connection in self._connections.items():
            for schema in await connection.open():
                tool = schema["function"]["name"]
                if tool in handles:
                    raise InvalidJob(
                        f'rollout.conversation.mcpServers: "{name}" and another server have a tool {tool!r}; name the '
                        "tools that the model is shown under `tools` of one of them"
                    )
                handles[tool] = ServerTool(schema, PREFIX + name, tool, connection.answers_limits)
        return handles

    async def call(
        self, session: str, target: str, method: str | None, arguments: Mapping[str, Any], key: str = ""
    ) -> Answer:
        """Call the tool `method` of a server. Errors come as answers."""
        began = time.monotonic()
        value, error = await self._connections[target.removeprefix(PREFIX)].call(str(method), dict(arguments), key)
        return Answer(value, error, time.monotonic() - began)

    async def end(self, session: str) -> None:
        """Servers know nothing of sessions."""

    async def close(self) -> None:
        """Leave all servers; those that were started here are ended."""
        for connection in self._connections.values():
            await connection.close()


def require_package() -> None:
    """Raises InvalidJob, which names the extra, where the package is not installed."""
    try:
        import mcp  # noqa: F401
    except ImportError as error:
        raise InvalidJob(
            "rollout.conversation.mcpServers needs the package mcp, which is not installed: "
            "pip install 'rljob[mcp]' brings it"
        ) from error


def _program(conversation: ConversationSpec, server: MCPServerSpec) -> ProgramSettings:
    """The server's program, where it is started here."""
    return ProgramSettings(
        tuple(server.command),
        conversation.confinement_of(server),
        parse_quantity(server.memory),
        server.max_processes,
        network=tuple(conversation.network_of(server)),
        readable=tuple(server.readable),
        environment=tuple(server.environment_variables),
    )
