"""CPU that an owner of leases spends on a step of a job with 1,024 guests, by emulation.

    python benchmarks/guest_leases.py [--guests 1024] [--owners 32] [--steps 6]

Owners are real (`LeaseOwner`), and so are messages as bytes: each is encoded once and decoded once, in envelopes as a
link would carry them. Links, streams and guests are emulated: a guest takes a lease, delivers it and asks for the next.
What is measured is the processor time of this process while an owner handles messages. gRPC comes on top of it, per
envelope.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections import defaultdict, deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from rljob_worker.databuffer.leases.owner import LeaseOwner
from rljob_worker.databuffer.protocol import peer_side as say
from rljob_worker.databuffer.protocol.codec import encode, read_envelope
from rljob_worker.databuffer.protocol.worker_calls import NextDelivery, OpenLeases, ReleaseDelivery
from rljob_worker.databuffer.routes.guest_route import GuestRoute, LeaseId
from rljob_worker.databuffer.routes.hosts import Host, WorkerId
from rljob_worker.databuffer.store.monitor import Monitor

HEARS: dict[type, Callable[[LeaseOwner, Host, Any], None]] = {
    say.GuestHello: LeaseOwner.hear_hello,
    say.LeaseRequested: LeaseOwner.hear_requested,
    say.LeaseDelivered: LeaseOwner.hear_delivered,
    say.LeasesFree: LeaseOwner.hear_free,
}


class Emulation:
    """Messages between owners and guests, in rounds: what was sent in one is carried in the next, an envelope for each
    pair of hosts."""

    def __init__(self, num_guests: int, num_owners: int, leases_per_guest: int) -> None:
        owners = tuple(Host("train", index) for index in range(num_owners))
        self.route = GuestRoute(
            group="rollout",
            num_guests=num_guests,
            generators_per_guest=1,
            owners=owners,
            ranks_per_owner=8,
            stages=("rollout",),
            batch_size=num_guests * leases_per_guest,
            lease_groups=1,
        )
        self.sent: dict[tuple[Host, Host], list[Any]] = defaultdict(list)
        self.seconds: dict[Host, float] = defaultdict(float)
        self.envelopes: dict[Host, int] = defaultdict(int)
        self.owners = {host: self._owner(host) for host in owners}
        self.done: dict[int, int] = defaultdict(int)

    def _owner(self, host: Host) -> LeaseOwner:
        links = SimpleNamespace(
            send=lambda to, *messages: self.sent[host, to].extend(messages),
            watch=lambda hosts: None,
            unwatch=lambda one: None,
        )
        owner = LeaseOwner(
            host,
            self.route,
            monitor=Monitor(),
            links=links,  # type: ignore[arg-type]
            later=lambda seconds, call: None,
            lease_seconds=300.0,
            version_of=lambda lease, oldest: max(oldest, lease.step - 2),
            complete=lambda stage, step: self._complete(step),
        )
        owner.deliveries = KeptAtOnce(owner)  # type: ignore[assignment]
        return owner

    def _complete(self, step: int) -> None:
        self.done[step] += 1

    def open(self, last: int) -> None:
        for host, owner in self.owners.items():
            with self.timed(host):
                owner.open(OpenLeases(first=1, last=last, oldest_version=0))

    def timed(self, host: Host) -> Any:
        return Timed(self.seconds, host)

    def hello(self) -> None:
        for index in range(self.route.num_guests):
            guest = Host("rollout", index)
            home = self.route.home(guest)
            self.sent[guest, home] += [say.GuestHello(), say.LeaseRequested(str(guest), 0)]

    def carry(self) -> bool:
        """One round; whether anything was sent."""
        sent, self.sent = self.sent, defaultdict(list)
        for (sender, to), messages in sent.items():
            body = encode(say.Envelope(0, tuple(messages)))
            if sender in self.owners:
                with self.timed(sender):
                    encode(say.Envelope(0, tuple(messages)))
                self.envelopes[sender] += 1
            if to in self.owners:
                self.envelopes[to] += 1
                with self.timed(to):
                    for message in read_envelope(body).messages:
                        HEARS[type(message)](self.owners[to], sender, message)
            else:
                self._guest(to, sender, messages)
        return bool(sent)

    def _guest(self, guest: Host, owner: Host, messages: list[Any]) -> None:
        for message in messages:
            if isinstance(message, say.LeaseAssigned):
                lease = (message.stage, message.step, message.rank, message.index, 0)
                self.sent[guest, owner].append(say.LeaseDelivered(*lease, CONTENTS, b"report" * 100, 0, 0))
                self.sent[guest, self.route.home(guest)].append(say.LeaseRequested(str(guest), 0))

    def read(self, step: int) -> None:
        """The workers of all owners take the rows of a step."""
        for host, owner in self.owners.items():
            with self.timed(host):
                for rank in self.route.ranks_of(host):
                    worker, request = (
                        WorkerId("train", rank),
                        NextDelivery(stage="rollout", step=step, waited=0, seconds=1),
                    )
                    owner.want(worker, request)
                    for index in range(self.route.num_leases("rollout", rank)):
                        assert owner.next(worker, request, is_everywhere=False) is not None
                        owner.release(worker, ReleaseDelivery(stage="rollout", step=step, index=index))


CONTENTS = encode({"num_rows": 0, "fields": [], "num_bytes": 0})


class Timed:
    """Adds the processor time of a block."""

    def __init__(self, seconds: dict[Host, float], host: Host) -> None:
        self._seconds, self._host = seconds, host

    def __enter__(self) -> None:
        self._started = time.process_time()

    def __exit__(self, *error: object) -> None:
        self._seconds[self._host] += time.process_time() - self._started


class KeptAtOnce:
    """In place of `Deliveries`: what is offered is here."""

    def __init__(self, owner: LeaseOwner) -> None:
        self._owner, self._offered, self._kept = owner, dict[Any, Any](), dict[LeaseId, Any]()

    def offer(self, delivery: Any) -> None:
        self._offered[delivery.lease] = delivery

    def begin(self, lease: LeaseId, generator: Any, *, is_wanted: bool) -> None:
        delivery = self._offered.pop(lease, None)
        if delivery is not None and self._owner.arrived(delivery):
            delivery.segment = SimpleNamespace(offset=0)
            self._kept[lease] = delivery

    def withdraw(self, lease: LeaseId, generator: Any) -> None:
        self._offered.pop(lease, None)

    def kept(self, lease: LeaseId) -> Any:
        return self._kept.get(lease)

    def release(self, lease: LeaseId) -> None:
        del self._kept[lease]


def run(num_guests: int, num_owners: int, leases_per_guest: int, num_steps: int) -> dict[str, Any]:
    """Milliseconds of the busiest owner, and envelopes, by step."""
    emulation = Emulation(num_guests, num_owners, leases_per_guest)
    emulation.hello()
    gc.disable()
    by_step = deque[dict[str, float]]()
    for step in range(1, num_steps + 1):
        emulation.seconds.clear()
        emulation.envelopes.clear()
        emulation.open(step + 1)
        while emulation.carry():
            pass
        assert emulation.done[step] == num_owners, f"step {step}: {emulation.done[step]} owners have all leases"
        emulation.read(step)
        gc.collect()
        by_step.append(
            {
                "busiest_ms": 1e3 * max(emulation.seconds.values()),
                "mean_ms": 1e3 * sum(emulation.seconds.values()) / num_owners,
                "envelopes": max(emulation.envelopes.values()),
            }
        )
    steady = list(by_step)[2:]
    return {name: round(max(step[name] for step in steady), 2) for name in steady[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--guests", type=int, default=1024)
    parser.add_argument("--owners", type=int, nargs="*", default=[8, 32, 64])
    parser.add_argument("--leases-per-guest", type=int, default=2)
    parser.add_argument("--steps", type=int, default=6)
    options = parser.parse_args()
    for owners in options.owners:
        result = run(options.guests, owners, options.leases_per_guest, options.steps)
        print(json.dumps({"guests": options.guests, "owners": owners, **result}), flush=True)


if __name__ == "__main__":
    main()
