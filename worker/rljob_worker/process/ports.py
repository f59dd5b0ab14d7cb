"""A fixed port that cannot be had is reported with its number; ports that the system chooses are never taken."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from rljob_worker.errors import InvalidJob


def check_free(what: str, host: str, port: int, variable: str) -> None:
    """Raise InvalidJob when somebody listens on a fixed port already; what gRPC says of that names no port."""
    if port == 0:
        return
    with socket.socket() as probe, named_port(what, port, variable):
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))


@contextmanager
def named_port(what: str, port: int, variable: str) -> Iterator[None]:
    """Turn a failed bind into InvalidJob that names who wanted the port, which, and what to do."""
    try:
        yield
    except OSError as error:
        raise InvalidJob(
            f"{what} cannot listen on port {port}: {error.strerror or error}; set {variable} to a free port, or to 0 "
            "for one that the system chooses"
        ) from error
