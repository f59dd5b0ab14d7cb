"""Network namespaces on one machine, each behind a link of a given speed: Linux, root, iproute2.

Every namespace has one address on a bridge. What leaves it and what enters it pass a token bucket of its own.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

BURST_BYTES = 256 << 10
QUEUE_MILLISECONDS = 100
"""Behind a controller 64 connections share what this holds, 200 kB at 16 Mbit/s: frames of 9,000 bytes are too few of
them, and connections starve until they time out."""


class Place(NamedTuple):
    """A namespace, its address, and the end of its link that is outside."""

    name: str
    address: str
    device: str

    def passed(self) -> tuple[int, int]:
        """Bytes sent and received so far, headers included."""
        figures = Path("/sys/class/net", self.device, "statistics")
        sent, received = (int((figures / name).read_text()) for name in ("rx_bytes", "tx_bytes"))
        return sent, received


@contextlib.contextmanager
def namespaces(megabits: Sequence[float]) -> Iterator[list[Place]]:
    """One for each speed, in Mbit/s in both directions."""
    tag = f"rl{os.getpid() % 10_000}"
    bridge, made, links = f"{tag}b", list[str](), list[str]()
    try:
        ip(f"link add {bridge} type bridge")
        ip(f"addr add 10.213.0.1/24 dev {bridge}")
        ip(f"link set {bridge} up")
        found = []
        for number, speed in enumerate(megabits):
            name, outside, address = f"{tag}n{number}", f"{tag}v{number}", f"10.213.0.{number + 2}"
            ip(f"netns add {name}")
            made.append(name)
            ip(f"link add {outside} type veth peer name eth0 netns {name}")
            links.append(outside)
            ip(f"link set {outside} master {bridge} up")
            ip(f"-n {name} addr add {address}/24 dev eth0")
            ip(f"-n {name} link set eth0 up")
            ip(f"-n {name} link set lo up")
            shape(outside, speed)
            shape("eth0", speed, name)
            found.append(Place(name, address, outside))
        yield found
    finally:
        for outside in links:  # with its namespace it would go some time later, and the next may have its name
            ip(f"link del {outside}")
        for name in made:
            ip(f"netns del {name}")
        ip(f"link del {bridge}")


def shape(device: str, megabits: float, namespace: str | None = None) -> None:
    """A token bucket on what leaves by a device."""
    where = f"-n {namespace} " if namespace else ""
    rate = f"rate {megabits}mbit burst {BURST_BYTES} latency {QUEUE_MILLISECONDS}ms"
    run(f"tc {where}qdisc add dev {device} root tbf {rate}")


def inside(namespace: str) -> list[str]:
    """What a command line begins with to run in a namespace."""
    return ["ip", "netns", "exec", namespace]


def data_buffer_in(place: Place, environment: Mapping[str, str]) -> subprocess.Popen[str]:
    """A data buffer that ends with its standard input, and says on standard output when it is ready."""
    return subprocess.Popen(
        [*inside(place.name), sys.executable, "-m", "rljob_worker.databuffer"],
        env=os.environ | environment | {"RLJOB_PARENT_PIPE": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def ip(arguments: str) -> None:
    run(f"ip {arguments}")


def run(command: str) -> None:
    subprocess.run(command.split(), check=True)
