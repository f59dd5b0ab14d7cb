"""Servers that confined code may connect to, as `host:port`: what is one, and which addresses never are."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field

NetworkEntry = Annotated[str, Field(pattern=r"^([^\s:/]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}$", max_length=300)]
"""The form of a server that a job lists; `network_place` says whether it is one."""

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

Address = IPv4Address | IPv6Address


@dataclass(frozen=True, slots=True)
class NetworkPlace:
    """A server that may be connected to."""

    host: str
    port: int


def network_place(entry: str) -> NetworkPlace:
    """An entry `host:port`, an IPv6 address in brackets. Raises ValueError, which says what is wrong with it."""
    try:
        parts = urlsplit(f"//{entry}")
        host, port = parts.hostname, parts.port
        is_plain = parts.netloc == entry and "@" not in entry
    except ValueError:
        host, port, is_plain = None, None, False
    if not host or not port or not is_plain or "*" in host:
        raise ValueError("is not of the form host:port with a port from 1 to 65535, such as api.example.com:443")
    if (address := as_address(host)) is not None and is_never_allowed(address):
        raise ValueError("is link-local or of a cloud's metadata, which is never allowed")
    return NetworkPlace(host, port)


def as_address(host: str) -> Address | None:
    """The address that a host is written as; None for a name."""
    try:
        return ip_address(host.partition("%")[0])
    except ValueError:
        return None


def plain_address(address: Address) -> Address:
    """The IPv4 address that an IPv6 address stands for, if it does."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in NAT64:
            return IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def is_never_allowed(address: Address) -> bool:
    """Whether it is of the machine's surroundings, which nobody's code may connect to."""
    plain = plain_address(address)
    return any(plain.version == network.version and plain in network for network in NEVER)
