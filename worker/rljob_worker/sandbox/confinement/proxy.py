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
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import urlsplit

from rljob_worker.errors import InvalidJob

MOST_HEADER_BYTES = 1 << 16
MOST_CONNECTIONS = 256
CONNECT_SECONDS = 10.0
COPY_BYTES = 1 << 16

NEVER = tuple(
    map(
        ip_network,
        (
            "0.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3", "::/128", "fe80::/10", "ff00::/8",
            # metadata: AWS over IPv6, Alibaba, Azure, Oracle
            "fd00:ec2::/32", "100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32",
        ),
    )
)  # fmt: skip
NAT64 = ip_network("64:ff9b::/96")

_log = logging.getLogger("rljob.sandbox")


@dataclass(frozen=True, slots=True)
class NetworkPlace:
    """A server that may be connected to."""

    host: str
    port: int


class _NotAllowed(Exception):
    """A request that gets an error, in words for its sender."""


def network_places(owner: str, network: Sequence[str]) -> frozenset[NetworkPlace]:
    """Entries `host:port`, an IPv6 address in brackets. Raises InvalidJob, which begins with `owner`."""
    places = set()
    for entry in network:
        try:
            parts = urlsplit(f"//{entry}")
            host, port = parts.hostname, parts.port
            is_plain = parts.netloc == entry and "@" not in entry
        except ValueError:
            host, port, is_plain = None, None, False
        if not host or not port or not is_plain or "*" in host:
            raise InvalidJob(f"{owner}: network: {entry!r} is not of the form host:port, such as api.example.com:443")
        if (address := _as_address(host)) is not None and _is_never(address):
            raise InvalidJob(
                f"{owner}: network: {entry} is link-local or of a cloud's metadata, which is never allowed"
            )
        places.add(NetworkPlace(host, port))
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
            if _is_never(checked) or (_plain(checked).is_loopback and not _names_loopback(place.host)):
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


def _as_address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host.partition("%")[0])
    except ValueError:
        return None


def _plain(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """The IPv4 address that an IPv6 address stands for, if it does."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in NAT64:
            return IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def _is_never(address: IPv4Address | IPv6Address) -> bool:
    plain = _plain(address)
    return any(plain.version == network.version and plain in network for network in NEVER)


def _names_loopback(host: str) -> bool:
    """Whether a job that lists this host means the worker's own machine."""
    address = _as_address(host)
    return host == "localhost" or (address is not None and address.is_loopback)
