"""Network namespaces on one machine, each behind a link of a given speed: what leaves it and what enters it pass a
token bucket of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence

from rljob_worker.process.lifeline import LIFELINE_FD
from rljob_worker.tests.namespaces import Place, inside, namespaces, run

BURST_BYTES = 256 << 10
QUEUE_MILLISECONDS = 100
"""Behind a controller 64 connections share what this holds, 200 kB at 16 Mbit/s: frames of 9,000 bytes are too few of
them, and connections starve until they time out."""

ALONE = "RLJOB_BENCHMARK_IN_NAMESPACE"


@contextlib.contextmanager
def shaped(megabits: Sequence[float]) -> Iterator[list[Place]]:
    """A namespace for each speed, in Mbit/s in both directions. From here on SIGTERM ends the program as an exception
    does, so that namespaces are taken down."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with namespaces(len(megabits)) as places:
        for place, speed in zip(places, megabits, strict=True):
            shape(place.device, speed)
            shape("eth0", speed, place.name)
        yield places


def shape(device: str, megabits: float, namespace: str | None = None) -> None:
    """A token bucket on what leaves by a device."""
    where = f"-n {namespace} " if namespace else ""
    rate = f"rate {megabits}mbit burst {BURST_BYTES} latency {QUEUE_MILLISECONDS}ms"
    run(f"tc {where}qdisc add dev {device} root tbf {rate}")


def shape_own_loopback(gigabits: float) -> None:
    """Have this program in a namespace of its own, whose loopback device is a link of that speed: it begins anew
    there."""
    if os.environ.get(ALONE) is None:
        os.environ[ALONE] = "yes"
        os.execvp("unshare", ["unshare", "--net", sys.executable, *sys.argv])
    run("ip link set lo up")
    # frames of the loopback device have 64 KB and more, of which a thousandth of a second holds some
    burst = max(BURST_BYTES, int(gigabits * 1e9 / 8 / 1000))
    run(f"tc qdisc add dev lo root tbf rate {gigabits}gbit burst {burst} latency {QUEUE_MILLISECONDS}ms")


def data_buffer_in(place: Place, environment: Mapping[str, str]) -> subprocess.Popen[str]:
    """A data buffer that ends with its standard input, and says on standard output when it is ready."""
    return subprocess.Popen(
        [*inside(place.name), sys.executable, "-m", "rljob_worker.databuffer"],
        env=os.environ | environment | {LIFELINE_FD: "0"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
