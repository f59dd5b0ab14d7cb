"""The state of every edge of rows on one host, step by step: one `EdgeStep` tells where its rows are, and why."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rljob_worker.databuffer.protocol.errors import OutOfOrder
from rljob_worker.databuffer.routes.assignment import Assignment
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.databuffer.routes.stage_route import StageRoute, by_host
from rljob_worker.databuffer.rows.arrangement import Arrangement, Header
from rljob_worker.databuffer.rows.segment import Views
from rljob_worker.databuffer.rows.stream import Selection
from rljob_worker.databuffer.store.segments import Segment

Int64 = NDArray[np.int64]

MAX_OPEN_STEPS = 64
"""Steps of an edge that are not over: who is further ahead than that is wrong."""


class SharePhase(enum.Enum):
    """How far a share is."""

    OFFERS = "its rows are being offered"
    LAY_OUT = "its lay-out is being worked out"
    ROOM = "it waits for room"
    DATA = "its rows are on the way"
    READY = "it can be read"
    OVER = "it has been read"


@dataclass(slots=True, eq=False)
class ProducerPart:
    """What one producer of this host has put."""

    segment: Segment
    views: Views
    rows_of: Mapping[int, Int64] | None = None
    """Share -> positions of its rows, once it is known who gets them."""

    def is_wholly(self, share: int) -> bool:
        """Whether all its rows are of one share."""
        return self.rows_of is not None and len(self.rows_of[share]) == len(self.views.index)


@dataclass(slots=True, eq=False)
class ConsumerShare:
    """What one data-parallel rank of this host gets."""

    number: int
    phase: SharePhase = SharePhase.OFFERS
    is_wanted: bool = False
    """Whether it is fetched once everything of it is offered."""
    offers: dict[Host, Header | None] = field(default_factory=dict)
    """What each host has of it; None for this host, whose parts can be looked at."""
    brought: dict[Host, bytes] = field(default_factory=dict)
    """Rows that came with their offer."""
    arrangement: Arrangement | None = None
    places: dict[Host, Int64] = field(default_factory=dict)
    """Row of the segment that each row of a host becomes."""
    own: list[Selection] = field(default_factory=list)
    """Its rows in the parts of this host."""
    segment: Segment | None = None
    target: Views | None = None
    """The segment as arrays, from when it is laid out until it can be read."""
    left: set[Host] = field(default_factory=set)
    """Hosts whose rows are not in place yet."""
    remote_bytes: int = 0
    wanted_at: float = math.inf
    """When a worker first asked for it."""
    offered_at: float = 0.0
    ready_at: float = 0.0

    @property
    def is_asked(self) -> bool:
        """Whether a worker has asked for it: what is fetched ahead is wanted before that."""
        return self.wanted_at < math.inf

    @property
    def producer_seconds(self) -> float:
        """From the first question for it to the last offer; 0 where it was there before."""
        return max(0.0, self.offered_at - self.wanted_at)

    @property
    def transfer_seconds(self) -> float:
        """From then on until it could be read."""
        return max(0.0, self.ready_at - max(self.offered_at, self.wanted_at))

    def missing(self, expected: Mapping[Host, object]) -> list[Host]:
        """Hosts that have not offered yet."""
        return sorted(expected.keys() - self.offers.keys())


@dataclass(slots=True, eq=False)
class EdgeStep:
    """One step of one edge on one host."""

    route: StageRoute
    step: int
    here: Host
    parts: dict[int, ProducerPart] = field(default_factory=dict)
    """Sealed, and not yet read by everybody."""
    sealed: set[int] = field(default_factory=set)
    assignment: Assignment | None = None
    shares: dict[int, ConsumerShare] = field(default_factory=dict)
    _expected: dict[int, dict[Host, tuple[int, ...]]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"edge {self.route.name}, step {self.step}"

    @property
    def is_assigned(self) -> bool:
        """Whether it is known who gets which row."""
        return self.assignment is not None or not self.route.needs_layouts

    @property
    def is_over(self) -> bool:
        """Whether nothing of it is here any more, nor will be: all parts have been put and read, and all shares."""
        shares = self.route.shares_on(self.here)
        return (
            not self.parts
            and not self.unsealed
            and all(share in self.shares and self.shares[share].phase is SharePhase.OVER for share in shares)
        )

    @property
    def unsealed(self) -> list[int]:
        """Parts of this host that have not been put."""
        return [part for part in self.route.parts_on(self.here) if part not in self.sealed]

    def share(self, number: int) -> ConsumerShare:
        if number not in self.shares:
            self.shares[number] = ConsumerShare(number)
        return self.shares[number]

    def expected(self, share: int) -> dict[Host, tuple[int, ...]] | None:
        """Hosts that offer rows of a share, with the parts; None while the layout is not complete."""
        if not self.is_assigned:
            return None
        if share not in self._expected:  # asked at every offer
            self._expected[share] = by_host(self.route, self.route.parts_of(share, self.assignment))
        return self._expected[share]

    def feeding(self, share: int) -> list[ProducerPart]:
        """Parts held here that have rows of a share, or tell its types."""
        held = (self.parts[number] for number in sorted(self.parts))
        return [part for part in held if part.rows_of is not None and share in part.rows_of]


class Edges:
    """All of them; steps that are over are forgotten once they are `kept_steps` behind."""

    def __init__(self, routes: Mapping[str, StageRoute], here: Host, kept_steps: int) -> None:
        self.routes = routes
        self._here = here
        self._kept_steps = kept_steps
        self._steps: dict[str, dict[int, EdgeStep]] = {name: {} for name in routes}
        self._forgotten: dict[str, int] = dict.fromkeys(routes, -1)

    def at(self, edge: str, step: int) -> EdgeStep:
        """Raises OutOfOrder for a step that is over and forgotten, or one too many."""
        steps = self._steps[edge]
        if step not in steps:
            if step <= self._forgotten[edge]:
                raise OutOfOrder(f"step {step} of edge {edge} is over: step {max(steps, default=step)} is here")
            self._forget(edge, step - self._kept_steps)
            if len(steps) >= MAX_OPEN_STEPS:
                raise OutOfOrder(f"step {step} of edge {edge}, while {len(steps)} others from {min(steps)} on are open")
            steps[step] = EdgeStep(self.routes[edge], step, self._here)
        return steps[step]

    def find(self, edge: str, step: int) -> EdgeStep | None:
        """None for a step that is not known here."""
        return self._steps[edge].get(step)

    def steps(self, edge: str) -> Iterator[EdgeStep]:
        """Steps of one edge, oldest first."""
        return (self._steps[edge][step] for step in sorted(self._steps[edge]))

    def _forget(self, edge: str, before: int) -> None:
        steps = self._steps[edge]
        for old in [step for step, state in steps.items() if step < before and state.is_over]:
            del steps[old]
            self._forgotten[edge] = max(self._forgotten[edge], old)
