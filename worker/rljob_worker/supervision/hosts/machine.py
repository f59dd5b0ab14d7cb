"""What a machine is called on the network."""

from __future__ import annotations

import socket


def is_here(name: str) -> bool:
    """Whether a host's name or IPv4 address is this machine's."""
    own = socket.gethostname()
    if name == own or ("." not in name and name == own.partition(".")[0]):
        return True
    try:
        addresses = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
    except OSError:
        return False
    return any(_can_listen(str(address[0])) for *_, address in addresses)


def _can_listen(address: str) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True
