"""A server with tools that answer, fail, hang, change and end: `python mcp_tools.py [FOLDER [http [PORT]]]`.

FOLDER/port is where it listens with `http`, FOLDER/pid its process; FOLDER/changed makes one tool another.
"""

import asyncio
import os
import socket
import sys
import time
from pathlib import Path

import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError
from mcp.types import INTERNAL_ERROR, ImageContent

folder = Path(sys.argv[1]) if sys.argv[1:] else None
server = MCPServer("tools", log_level="CRITICAL")


@server.tool()
def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


@server.tool()
def fail(why: str) -> str:
    """Fails."""
    raise ToolError(why)


@server.tool()
def crash() -> str:
    """Fails as servers do that leave an exception to the protocol."""
    raise MCPError(code=INTERNAL_ERROR, message="no such page")


@server.tool()
def end() -> str:
    """Ends the server."""
    os._exit(3)


@server.tool()
def sleep() -> str:
    """Never answers."""
    while True:
        time.sleep(3600)


@server.tool()
def picture() -> ImageContent:
    """Answers what is not text."""
    return ImageContent(type="image", data="aGk=", mime_type="image/png")


@server.tool()
def long() -> str:
    """Answers 2 MB."""
    return "x" * (2 << 20)


@server.tool()
def noise() -> str:
    """Prints what is no message, in no encoding."""
    sys.stdout.buffer.write(b"caf\xe9 \xff\n{}\n")
    sys.stdout.buffer.flush()
    return "done"


@server.tool()
def variable(name: str) -> str:
    """Reads its environment."""
    return os.environ.get(name, "unset")


@server.tool()
def read(path: str) -> str:
    """Reads a file."""
    try:
        return Path(path).read_text()
    except OSError as error:
        raise ToolError(str(error)) from error


@server.tool()
def take(num_bytes: int) -> str:
    """Takes memory, and keeps it."""
    memory = bytearray(num_bytes)
    memory[::4096] = b"x" * len(memory[::4096])
    while True:
        time.sleep(3600)


@server.tool()
async def change(context: Context) -> str:
    """Makes one tool another."""
    server.remove_tool("multiply")
    server.add_tool(add, name="multiply")
    await context.session.send_tool_list_changed()
    return "changed"


if folder and (folder / "changed").exists():

    @server.tool()
    def multiply(a: int, b: int) -> int:
        """Multiplies."""
        return a * b
else:

    @server.tool()
    def multiply(a: str) -> str:
        """Repeats."""
        return a * 2


def serve_http() -> None:
    """On a port that the system chooses, where none is named."""
    listener = socket.create_server(("127.0.0.1", int(sys.argv[3]) if sys.argv[3:] else 0))
    (folder / "new").write_text(str(listener.getsockname()[1]))
    (folder / "new").rename(folder / "port")
    config = uvicorn.Config(server.streamable_http_app(), log_level="error")
    asyncio.run(uvicorn.Server(config).serve(sockets=[listener]))


if folder:
    (folder / "pid").write_text(str(os.getpid()))
if len(sys.argv) > 2:
    serve_http()
else:
    server.run()
