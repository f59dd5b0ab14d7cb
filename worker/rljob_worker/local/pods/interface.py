"""By which network interface a machine has an address."""

from __future__ import annotations

import fcntl
import socket
import struct

_SIOCGIFADDR = 0x8915
"""Linux: the IPv4 address of an interface."""


def interface_of(address: str) -> str:
    """The interface that has an IPv4 address; empty where none has."""
    names = [name for _, name in socket.if_nameindex()]
    if address.startswith("127."):  # all of them are the loopback's: lo, on macOS lo0
        return next((name for name in names if name.startswith("lo")), "")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        return next((name for name in names if _address(probe, name) == address), "")


def _address(probe: socket.socket, interface: str) -> str:
    try:
        answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
    except OSError:  # it has none
        return ""
    return socket.inet_ntoa(answer[20:24])
