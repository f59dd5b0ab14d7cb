"""Network namespaces as machines on one: Linux, root, iproute2. Each has one address on a bridge of its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


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

    def unplug(self) -> None:
        """Nothing reaches it any more, and nobody is notified."""
        run(f"ip link set {self.device} nomaster")


@contextlib.contextmanager
def namespaces(count: int) -> Iterator[list[Place]]:
    """So many, at 10.213.0.2 and after it. The machine itself is not on their bridge."""
    tag = f"rl{os.getpid() % 10_000}"
    bridge, result = f"{tag}b", list[Place]()
    with contextlib.ExitStack() as stack:
        run(f"ip link add {bridge} type bridge")
        stack.callback(run, f"ip link del {bridge}")
        run(f"ip link set {bridge} up")
        for number in range(count):
            place = Place(f"{tag}n{number}", f"10.213.0.{number + 2}", f"{tag}v{number}")
            run(f"ip netns add {place.name}")
            stack.callback(run, f"ip netns del {place.name}")
            run(f"ip link add {place.device} type veth peer name eth0 netns {place.name}")
            # with its namespace it would go some time later, and the next may have its name
            stack.callback(run, f"ip link del {place.device}")
            run(f"ip link set {place.device} master {bridge} up")
            run(f"ip -n {place.name} addr add {place.address}/24 dev eth0")
            run(f"ip -n {place.name} link set eth0 up")
            run(f"ip -n {place.name} link set lo up")
            result.append(place)
        yield result


def inside(namespace: str) -> list[str]:
    """What a command line begins with to run in a namespace."""
    return ["ip", "netns", "exec", namespace]


def run(command: str) -> None:
    subprocess.run(command.split(), check=True)
