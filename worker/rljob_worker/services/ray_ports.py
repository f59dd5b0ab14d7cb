"""The ports of Ray on this machine: chosen before it starts, so that none of its processes waits to hear another's, and
one that is taken has a name."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rljob_worker.errors import PeerLost

OWNERS = {
    "gcs_server_port": "store of the cluster's state",
    "node_manager_port": "node manager",
    "object_manager_port": "object manager",
    "metrics_export_port": "metrics",
    "metrics_agent_port": "dashboard agent (gRPC)",
    "dashboard_agent_listen_port": "dashboard agent (HTTP)",
    "runtime_env_agent_port": "agent of runtime environments",
}
"""What Ray calls each port, and what a message does."""

NUM_WORKERS = 256
"""Processes of applications that have a port each, besides those of copies that we know of."""

LOWEST, HIGHEST, NUM_DRAWS = 10000, 65535, 100

_SYSTEMS_OWN = Path("/proc/sys/net/ipv4/ip_local_port_range")
_RANDOM = random.SystemRandom()


@dataclass(frozen=True, slots=True)
class RayPorts:
    """Ports in a row: one of each owner, then those of workers."""

    first: int
    num_workers: int

    @property
    def arguments(self) -> dict[str, int]:
        """As Ray's parameters name them."""
        own = {name: self.first + place for place, name in enumerate(OWNERS)}
        first_worker = self.first + len(OWNERS)
        return {**own, "min_worker_port": first_worker, "max_worker_port": first_worker + self.num_workers - 1}

    def taken(self, is_free: Callable[[int], bool]) -> list[str]:
        """What to say of ports that somebody else has; workers do without some of theirs."""
        ports = self.arguments
        lost = (name for name in OWNERS if not is_free(ports[name]))
        return [f"port {ports[name]} of Ray's {OWNERS[name]} is taken" for name in lost]


def is_free(port: int) -> bool:
    """Whether nobody listens there, on any address."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that have ended are nobody's
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def choose_ports(
    num_workers: int,
    span: tuple[int, int],
    is_free: Callable[[int], bool] = is_free,
    draw: Callable[[int, int], int] = _RANDOM.randint,
) -> RayPorts:
    """Free ones within `span`, its ends included. Raises PeerLost where none are found."""
    count = len(OWNERS) + num_workers
    for _ in range(NUM_DRAWS):
        first = draw(span[0], span[1] - count + 1)
        if all(map(is_free, range(first, first + count))):
            return RayPorts(first, num_workers)
    raise PeerLost(f"Ray needs {count} free ports in a row, and none were found from {span[0]} to {span[1]}")


def span_of(systems_own: str | None, count: int) -> tuple[int, int]:
    """Where to look for `count` ports: below those that the system gives to a process that asks for any, as in
    `/proc/sys/net/ipv4/ip_local_port_range`, so that nobody gets them between our look and Ray's start. Pure."""
    lowest_own = int(systems_own.split()[0]) if systems_own else HIGHEST + 1
    return (LOWEST, lowest_own - 1) if lowest_own - LOWEST >= 2 * count else (LOWEST, HIGHEST)


def free_ports(num_copies: int) -> RayPorts:
    """Free ports of this machine for `num_copies` copies of models."""
    num_workers = NUM_WORKERS + num_copies
    systems_own = _SYSTEMS_OWN.read_text() if _SYSTEMS_OWN.is_file() else None
    return choose_ports(num_workers, span_of(systems_own, len(OWNERS) + num_workers))
