"""A simulated job whose workers are a test: it puts and gets, and says how far the data buffers get in between."""

from __future__ import annotations

from collections.abc import Sequence

from rljob_api.planning.plan import Plan
from rljob_worker.batch import Batch
from rljob_worker.databuffer.protocol.peer_side import PeerMessage
from rljob_worker.databuffer.protocol.worker_answers import NotYet, Reservation
from rljob_worker.databuffer.protocol.worker_calls import ReserveRows, SealRows
from rljob_worker.databuffer.pull.edges import ConsumerShare, EdgeStep
from rljob_worker.databuffer.routes.hosts import Host, WorkerId
from rljob_worker.databuffer.rows import segment
from rljob_worker.databuffer.server.buffer import DataBuffer
from rljob_worker.databuffer.tests.simulation.job import SimulatedJob

QUIET_SECONDS = 0.06
"""Longer than anything takes that was not put off on purpose."""
NO_SECONDS = 5e-324
"""A wait that is over at once, and does not end with an error."""


class Job:
    """All hosts of a plan, whose links work except for streams that break."""

    def __init__(
        self,
        plan: Plan,
        capacity: int = 1 << 20,
        spill: int = 0,
        seed: int = 0,
        fan_out: int = 2,
        streams_that_break: int = 0,
        few_bytes: int = 0,
    ) -> None:
        """streams_that_break: how many end before their last batch, the first that are asked for. few_bytes: so few
        travel with their offer."""
        self.plan = plan
        self._job = SimulatedJob(plan, seed, sizes=[capacity, spill] if spill else [capacity], fan_out=fan_out)
        self.random = self._job.loop.random
        self._job.network.num_breaks = streams_that_break
        for pod in self._job.pods.values():
            pod.buffer.producing.few_bytes = few_bytes
        self.go_on()

    @property
    def streamed(self) -> list[tuple[Host, Host]]:
        """Who asked for a stream, and whom."""
        return self._job.network.streamed

    @property
    def delivered(self) -> list[tuple[Host, Host, PeerMessage]]:
        """Sender, receiver and message."""
        return [
            (sender, receiver, message)
            for sender, receiver, envelope in self._job.envelopes
            for message in envelope.messages
        ]

    @property
    def submitted(self) -> list[str]:
        """All work that was not done where it arose."""
        return self._job.loop.submitted

    def go_on(self, limit: int | None = None) -> None:
        """Until nothing happens any more, or for that many events."""
        self._job.loop.settle(QUIET_SECONDS, limit)

    def buffer_of(self, worker: WorkerId) -> DataBuffer:
        return self._job.pod_of(worker).buffer

    def buffer(self, host: Host) -> DataBuffer:
        return self._job.pods[host].buffer

    # ---- what a worker does

    def put(self, worker: WorkerId, step: int, edge: str, batch: Batch) -> bool:
        """Whether there was room."""
        buffer = self.buffer_of(worker)
        chosen = batch.select(buffer.edges.routes[edge].columns)
        contents = segment.contents_of(chosen)
        asked = ReserveRows(edge=edge, step=step, num_bytes=contents.num_bytes, waited=0.0, seconds=NO_SECONDS)
        room = buffer.producing.reserve(worker, asked)
        if isinstance(room, NotYet):
            return False
        assert isinstance(room, Reservation)
        segment.write(buffer.memory, room.offset, contents, chosen)
        buffer.producing.seal(worker, SealRows(edge=edge, step=step, offset=room.offset, contents=contents))
        return True

    def want(self, worker: WorkerId, step: int, edge: str) -> tuple[EdgeStep, ConsumerShare]:
        buffer = self.buffer_of(worker)
        number = buffer.edges.routes[edge].share_of(worker)
        assert number is not None
        state = buffer.edges.at(edge, step)
        return state, buffer.consuming.want(state, number)

    def get(self, worker: WorkerId, step: int, edge: str) -> Batch | None:
        """The rows of a worker if they are there."""
        buffer = self.buffer_of(worker)
        state, share = self.want(worker, step, edge)
        readable = buffer.consuming.readable(state, share, worker.rank)
        if readable is None or readable.contents is None:
            return None
        rows = segment.views(buffer.memory, readable.offset, readable.contents).as_batch()
        return rows

    def release(self, worker: WorkerId, step: int, edge: str) -> None:
        buffer = self.buffer_of(worker)
        number = buffer.edges.routes[edge].share_of(worker)
        assert number is not None
        buffer.consuming.release(buffer.edges.at(edge, step), number, worker.rank)

    def held_bytes(self) -> dict[str, int]:
        """What is left in memory and on disk, of hosts that hold anything."""
        places = {str(host): pod.buffer.segments for host, pod in self._job.pods.items()}
        used = {host: segments.memory.used + segments.disk.used for host, segments in places.items()}
        return {host: num_bytes for host, num_bytes in used.items() if num_bytes}


def workers(group: str, ranks: Sequence[int] | range) -> list[WorkerId]:
    return [WorkerId(group, rank) for rank in ranks]
