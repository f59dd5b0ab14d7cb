"""Serving HTTP for the length of a block."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from socketserver import TCPServer, ThreadingMixIn
from typing import Any


class ThreadingServer(ThreadingMixIn, TCPServer):
    """What http.server's and werkzeug's servers are."""


@contextmanager
def serving(server: ThreadingServer) -> Iterator[str]:
    """The address, "http://host:port". Connections that clients keep alive end with the block, and so do the threads
    that answer them."""
    connections: list[socket.socket] = []
    accept = server.get_request

    def get_request() -> tuple[socket.socket, Any]:
        connection, address = accept()
        connections.append(connection)
        return connection, address

    server.get_request = get_request  # type: ignore[method-assign]
    server.daemon_threads = False  # so that closing waits for them
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    host, port = server.server_address[:2]
    try:
        yield f"http://{host!s}:{port}"
    finally:
        server.shutdown()
        thread.join()
        for connection in connections:
            with suppress(OSError):  # it is closed
                connection.shutdown(socket.SHUT_RDWR)
        server.server_close()
