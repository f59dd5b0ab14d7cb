"""Questions for leases on one host: those of its generators, and those that reach it as an owner."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from rljob_worker.databuffer.leases.ledger import Ledger
from rljob_worker.databuffer.links.links import Links
from rljob_worker.databuffer.protocol.errors import OutOfOrder, require
from rljob_worker.databuffer.protocol.peer_side import LeaseAsked, LeaseGranted
from rljob_worker.databuffer.protocol.worker_answers import Lease
from rljob_worker.databuffer.protocol.worker_calls import TakeLease
from rljob_worker.databuffer.routes.hosts import Host, WorkerId
from rljob_worker.databuffer.routes.lease_route import LeaseRoute
from rljob_worker.databuffer.store.monitor import Monitor


class Leases:
    """Nothing here waits: a generator's question is open until its answer comes, an owner's is held until the step that
    it is about may begin."""

    def __init__(
        self, here: Host, routes: Mapping[str, LeaseRoute], *, monitor: Monitor, links: Links, staleness: int
    ) -> None:
        self.routes = routes
        self._here, self._monitor, self._links = here, monitor, links
        self._ledgers = {
            route.stage: Ledger(route.owners.index(here), len(route.owners), staleness)
            for route in routes.values()
            if here in route.owners
        }
        self._held: list[LeaseAsked] = []
        self._open: dict[tuple[str, int], LeaseAsked] = {}
        """By stage and generator."""
        self._granted: dict[tuple[str, int], LeaseGranted] = {}

    @property
    def is_owner(self) -> bool:
        return bool(self._ledgers)

    # ---- of a generator

    def ask(self, worker: WorkerId, request: TakeLease) -> None:
        """Ask for a worker's next lease, unless that is done; under no lock. Raises OutOfOrder for a question while
        another one is open."""
        route = self.routes[request.stage]
        generator = route.generator_of(worker)
        assert generator is not None, f"{worker} takes no leases of {request.stage}"
        asked = LeaseAsked(request.stage, request.step, request.number, request.num_leases, generator)
        with self._monitor.change():
            before = self._open.setdefault((request.stage, generator), asked)
        if before is asked:
            self._links.send(route.owner(generator, 0), asked)
        elif before != asked:
            raise OutOfOrder(f"{worker} asks for a lease of {asked} while it waits for one of {before}")

    def granted(self, worker: WorkerId, stage: str) -> Lease | None:
        """The answer if it is there, once; under the lock."""
        generator = self.routes[stage].generator_of(worker)
        assert generator is not None
        if (stage, generator) not in self._granted:
            return None
        del self._open[stage, generator]
        return Lease(lease=self._granted.pop((stage, generator)).lease)

    def hear_granted(self, sender: Host, message: LeaseGranted) -> None:
        """From an owner."""
        key = message.stage, message.generator
        with self._monitor.change():
            asked = self._open.get(key)
            is_answer = asked is not None and (asked.step, asked.number) == (message.step, message.number)
            require(is_answer and key not in self._granted, f"nobody asked for {message}")
            assert asked is not None
            require(sender in self.routes[message.stage].owners, f"host {sender} leases nothing")
            is_lease = message.lease is None or 0 <= message.lease < asked.num_leases
            require(is_lease, f"{message} is none of {asked.num_leases} leases")
            self._granted[key] = message

    # ---- of an owner

    def hear_asked(self, sender: Host, message: LeaseAsked) -> None:
        """From a generator, or from the owner before this one."""
        require(message.stage in self._ledgers, f"host {self._here} leases nothing of {message.stage!r}")
        route, generator, hops = self.routes[message.stage], message.generator, message.hops
        is_possible = 0 <= generator < route.num_generators and 0 <= hops < len(route.owners)
        require(is_possible and message.num_leases >= 0, f"{message} comes from nobody")
        before = route.owner(generator, hops - 1) if hops else route.host_of(generator)
        require((sender, self._here) == (before, route.owner(generator, hops)), f"{message} is not for host {sender}")
        self._answer(message)

    def acknowledge(self, step: int) -> None:
        """The batch of a step was trained on, and everybody has reported it."""
        with self._monitor.change():
            for ledger in self._ledgers.values():
                ledger.acknowledge(step)
            held, self._held = self._held, []
        for message in held:
            self._answer(message)

    def _answer(self, asked: LeaseAsked) -> None:
        route, ledger = self.routes[asked.stage], self._ledgers[asked.stage]
        with self._monitor.change():
            if not ledger.is_open(asked.step):
                self._held.append(asked)
                return
            lease = ledger.grant(asked.step, asked.number, asked.num_leases)
        if lease is None and asked.hops + 1 < len(route.owners):
            self._links.send(route.owner(asked.generator, asked.hops + 1), replace(asked, hops=asked.hops + 1))
            return
        answer = LeaseGranted(asked.stage, asked.step, asked.number, asked.generator, lease)
        self._links.send(route.host_of(asked.generator), answer)
