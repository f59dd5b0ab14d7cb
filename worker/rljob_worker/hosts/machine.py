"""What a machine is called on the network, and by which interface."""

from __future__ import annotations

import fcntl
import socket
import struct

_SIOCGIFADDR = 0x8915
"""Linux: the IPv4 address of an interface."""


def is_here(name: str) -> bool:
    """Whether a host's name or IPv4 address is this machine's."""
    own = socket.gethostname()
    if name == own or ("." not in name and name == own.partition(".")[0]):
        return True
    try:
        found = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
    except OSError:
        return False
    return any(_can_listen(str(address[0])) for *_, address in found)


def interface_of(address: str) -> str:
    """The interface that has an IPv4 address; empty where none has, and for loopback."""
    if address.startswith("127."):
        return ""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        return next((name for _, name in socket.if_nameindex() if _address(probe, name) == address), "")


def _can_listen(address: str) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def _address(probe: socket.socket, interface: str) -> str:
    try:
        answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
    except OSError:  # it has none
        return ""
    return socket.inet_ntoa(answer[20:24])
