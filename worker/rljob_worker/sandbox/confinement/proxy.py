"""A proxy in the worker by which confined processes reach the network: HTTP, and HTTPS by CONNECT, to listed places.

A name is resolved here, once, and the address that was checked is the one that is connected to. Addresses of the
machine's surroundings are never connected to: link-local ones, and those by which clouds hand out credentials.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from asyncio import open_connection
from collections.abc import Sequence
from ipaddress import ip_address
from urllib.parse import urlsplit

from rljob_api.vocabulary.network import NetworkPlace, as_address, is_never_allowed, network_place, plain_address
from rljob_worker.errors import InvalidJob

MOST_HEADER_BYTES = 1 << 16
MOST_CONNECTIONS = 256
CONNECT_SECONDS = 10.0
COPY_BYTES = 1 << 16

_log = logging.getLogger("rljob.sandbox")


class _NotAllowed(Exception):
    """A request that gets an error, in words for its sender."""


def network_places(owner: str, network: Sequence[str]) -> frozenset[NetworkPlace]:
    """Entries `host:port`, an IPv6 address in brackets. Raises InvalidJob, which begins with `owner`."""
    places = set()
    for entry in network:
        try:
            places.add(network_place(entry))
        except ValueError as error:
            raise InvalidJob(f"{owner}: network: {entry!r} {error}") from error
    return frozenset(places)


class Proxy:
    """Listens on this machine's loopback, in a thread with an event loop of its own."""

    def __init__(self, places: frozenset[NetworkPlace]) -> None:
        self._places = places
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="sandbox-proxy", daemon=True)
        self._thread.start()

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which programs know of a proxy."""
        url = f"http://127.0.0.1:{self.port}"
        return {name: url for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")}

    def close(self) -> None:
        """End every connection."""
        self._started.wait()
        self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join()

    async def _run(self) -> None:
        self._loop, self._closing = asyncio.get_running_loop(), asyncio.Event()
        self._free = asyncio.Semaphore(MOST_CONNECTIONS)
        # once a client has closed its side, nothing but this keeps a connection's task from the garbage collector
        self._serving: set[asyncio.Task[None]] = set()
        self._started.set()
        server = await asyncio.start_server(self._serve, sock=self._socket, limit=MOST_HEADER_BYTES)
        await self._closing.wait()
        server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        async with self._free:
            try:
                await self._connect(reader, writer)
            except _NotAllowed as error:
                _log.warning("a connection of user code was refused: %s", error)
                text = f"{error}\n"
                head = f"HTTP/1.1 403 Forbidden\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n"
                writer.write(head.encode() + text.encode())
            except (OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
                writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            finally:
                with contextlib.suppress(OSError):
                    await writer.drain()
                writer.close()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read one request, connect to whom it names, and pass bytes until either ends."""
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), CONNECT_SECONDS)
        line, *headers = head[:-4].decode("latin-1").split("\r\n")
        method, url, version = line.split(" ")
        tunnels = method == "CONNECT"
        parts = urlsplit(f"//{url}" if tunnels else url)
        place = NetworkPlace((parts.hostname or "").lower(), parts.port or (443 if tunnels else 80))
        upstream, to_upstream = await asyncio.wait_for(self._open(place), CONNECT_SECONDS)
        try:
            if tunnels:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                path = parts._replace(scheme="", netloc="").geturl() or "/"
                to_upstream.write(_request(f"{method} {path} {version}", headers, parts.netloc))
            await asyncio.gather(_copy(reader, to_upstream), _copy(upstream, writer))
        finally:
            to_upstream.close()

    async def _open(self, place: NetworkPlace) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if place not in self._places:
            raise _NotAllowed(f"{place.host}:{place.port} is not in the job's `network`")
        infos = await self._loop.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
        addresses = [str(item[4][0]) for item in infos]
        for address in addresses:
            checked = ip_address(address.partition("%")[0])
            if is_never_allowed(checked) or (plain_address(checked).is_loopback and not _names_loopback(place.host)):
                raise _NotAllowed(f"{place.host} is {address}, which is never allowed")
        return await open_connection(addresses[0], place.port)


def _request(line: str, headers: Sequence[str], host: str) -> bytes:
    """A request as its server gets it: for this host, and one on a connection."""
    dropped = ("host", "connection", "keep-alive", "proxy-connection", "proxy-authorization")
    passed = [header for header in headers if header.partition(":")[0].strip().lower() not in dropped]
    return "\r\n".join([line, f"Host: {host}", "Connection: close", *passed, "", ""]).encode("latin-1")


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(COPY_BYTES):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()


def _names_loopback(host: str) -> bool:
    """Whether a job that lists this host means the worker's own machine."""
    address = as_address(host)
    return host == "localhost" or (address is not None and address.is_loopback)
