"""What a data buffer answers to the workers of its host: every request by its type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from rljob_worker.databuffer.leases.owner import LeaseOwner
from rljob_worker.databuffer.links.fencing import Identity
from rljob_worker.databuffer.protocol import worker_answers as say
from rljob_worker.databuffer.protocol import worker_calls as ask
from rljob_worker.databuffer.protocol.errors import Bug
from rljob_worker.databuffer.pull.consuming import why_not_ready
from rljob_worker.databuffer.pull.edges import ConsumerShare, EdgeStep, SharePhase
from rljob_worker.databuffer.pull.producing import layout_topic
from rljob_worker.databuffer.routes.guest_route import delivered_topic, longest_wait_seconds
from rljob_worker.databuffer.routes.hosts import Host, WorkerId
from rljob_worker.databuffer.routes.job_tree import REPORT, VERDICT
from rljob_worker.databuffer.routes.lease_route import outcomes_topic
from rljob_worker.databuffer.server.buffer import DataBuffer
from rljob_worker.databuffer.server.stragglers import SHOWN, WAITED
from rljob_worker.databuffer.weights.weights import Weights
from rljob_worker.errors import DeadlineExceeded, PeerLost, RLJobError


class WorkerSide:
    """Answers the workers of one host. An exception that is none of ours ends the job, and not only its worker.

    Once the data plane is broken the first cause is raised, except what was ready before and what is given back.
    """

    def __init__(self, buffer: DataBuffer) -> None:
        self._buffer = buffer

    def __call__(self, caller: Identity, request: ask.WorkerRequest) -> say.WorkerAnswer:
        answer = _ANSWERS[type(request)]
        try:
            if not isinstance(request, _ANSWERED_BY_STATE):
                self._buffer.monitor.check()
            result: say.WorkerAnswer = answer(self, caller, request)
            return result
        except RLJobError:
            raise
        except Exception as error:
            bug = Bug(f"{type(request).__name__} of {caller.worker}: {error!r}")
            self._buffer.break_down(bug)
            raise bug from error

    # ---- about workers

    def _hello(self, caller: Identity, request: ask.WorkerHello) -> say.Welcome:
        buffer = self._buffer
        edges = {
            name: say.EdgeOfWorker(
                columns=list(route.columns), part=route.part_of(caller.worker), share=route.share_of(caller.worker)
            )
            for name, route in buffer.edges.routes.items()
        }
        return say.Welcome(
            places=[(str(place.path), place.num_bytes) for place in buffer.places],
            life=buffer.life,
            edges=edges,
            weights=buffer.weights_routes.of_worker(caller.worker, buffer.here),
            deadline_seconds=longest_wait_seconds(buffer.plan),
        )

    def _set_status(self, caller: Identity, request: ask.SetStatus) -> say.Done:
        self._buffer.worker_statuses.set(caller.rank, request.status)
        return say.Done()

    def _ask_status(self, caller: Identity, request: ask.AskStatus) -> say.Statuses:
        """Empty while the host has not started."""
        host = Host(request.group, request.host)
        return say.Statuses(by_rank=self._buffer.statuses_of(host))

    # ---- rows

    def _reserve_rows(self, caller: Identity, request: ask.ReserveRows) -> say.Reservation | say.NotYet:
        return self._buffer.producing.reserve(caller.worker, request)

    def _seal_rows(self, caller: Identity, request: ask.SealRows) -> say.Done:
        self._buffer.producing.seal(caller.worker, request)
        return say.Done()

    def _get_rows(self, caller: Identity, request: ask.GetRows) -> say.ShareLocation | say.NotYet:
        buffer, consuming = self._buffer, self._buffer.consuming
        number = buffer.edges.routes[request.edge].share_of(caller.worker)
        assert number is not None, f"{caller.worker} reads nothing from edge {request.edge}"
        with buffer.monitor.look():
            state = buffer.edges.at(request.edge, request.step)
        share = consuming.want(state, number)
        self._refuse_those_who_left(state, share)

        def rows() -> say.ShareLocation | None:
            segment = consuming.readable(state, share, caller.rank)
            if segment is None:
                return None
            assert segment.contents is not None
            return say.ShareLocation(
                offset=segment.offset,
                contents=segment.contents,
                producer_seconds=share.producer_seconds,
                transfer_seconds=share.transfer_seconds,
            )

        return buffer.monitor.poll(request, rows, lambda: self._late_rows(state, share, request.waited))

    def _refuse_those_who_left(self, state: EdgeStep, share: ConsumerShare) -> None:
        """A data buffer that has ended will not offer anything."""
        with self._buffer.monitor.look():
            expected = state.expected(share.number) if share.phase is SharePhase.OFFERS else None
            absent = [] if expected is None else share.missing(expected)
        left = [str(host) for host in absent if host != self._buffer.here and self._buffer.links.has_left(host)]
        if left:
            lost = PeerLost(f"the data buffer of host {left[0]} has ended, and its rows of {state.name} have not come")
            self._buffer.break_down(lost)
            self._buffer.monitor.check()

    def _late_rows(self, state: EdgeStep, share: ConsumerShare, seconds: float) -> RLJobError:
        """Why a share is not there; asks other hosts, so not under the lock."""
        edge, step, lateness = state.route.name, state.step, self._buffer.lateness
        missing, kind = list[str](), WAITED
        with self._buffer.monitor.look():
            expected = state.expected(share.number)
            absent = [] if expected is None else share.missing(expected)
        if expected is None:
            missing, kind = lateness.of_gathering(layout_topic(edge), step)
        elif absent:
            missing, kind = lateness.of_hosts(edge, step, absent)
        with self._buffer.monitor.look():
            return kind(why_not_ready(state, share, self._buffer.segments, seconds, missing))

    def _release_rows(self, caller: Identity, request: ask.ReleaseRows) -> say.Done:
        number = self._buffer.edges.routes[request.edge].share_of(caller.worker)
        assert number is not None, f"{caller.worker} reads nothing from edge {request.edge}"
        with self._buffer.monitor.look():
            state = self._buffer.edges.at(request.edge, request.step)
        self._buffer.consuming.release(state, number, caller.rank)
        return say.Done()

    def _drain(self, caller: Identity, request: ask.Drain) -> say.Done | say.NotYet:
        buffer, worker = self._buffer, caller.worker
        with buffer.monitor.look():
            readers = buffer.producing.readers(worker) | buffer.weights.readers(worker)
        # neighbours, who would say that one of these is lost, may have left
        buffer.links.watch(sorted(readers))

        def is_drained() -> bool | None:
            is_read = not buffer.producing.unread(worker) and buffer.weights.is_drained(worker)
            return (is_read and not buffer.tree.unfinished) or None

        if buffer.monitor.wait(is_drained, request.held_seconds) and buffer.links.flush(request.held_seconds):
            buffer.links.check_delivered()
            return say.Done()
        if request.waited < request.seconds:
            return say.NotYet()
        with buffer.monitor.look():
            unread, unfinished = buffer.producing.unread(worker), buffer.tree.unfinished
            if unread or not unfinished:
                raise buffer.producing.late_readers(worker, request.waited)
        topic, step = unfinished[0]
        late, kind = buffer.lateness.of_gathering(topic, step)
        raise kind(f"{worker} waited {request.waited:.1f} s for the {topic} of step {step}: {'; '.join(late)}")

    # ---- leases

    def _take_lease(self, caller: Identity, request: ask.TakeLease) -> say.Lease | say.NotYet:
        leases = self._buffer.leases
        leases.ask(caller.worker, request)
        granted = partial(leases.granted, caller.worker, request.stage)
        return self._buffer.monitor.poll(request, granted, lambda: self._late_lease(caller, request))

    def _late_lease(self, caller: Identity, request: ask.TakeLease) -> RLJobError:
        """A lease is not given before an earlier step is done: then a worker that has not reported that is late."""
        owners = ", ".join(map(str, self._buffer.leases.routes[request.stage].owners[:SHOWN]))
        before = request.step - self._buffer.plan.staleness - 2
        words = (
            f"{caller.worker} waited {request.waited:.1f} s for a lease of {request.stage}, step {request.step}, round "
            f"{request.number}, which hosts {owners} give once step {before} is done"
        )
        if before <= 0:
            return DeadlineExceeded(words)
        late, kind = self._buffer.lateness.of_gathering(REPORT, before)
        return kind(f"{words}. Missing: {'; '.join(late) or 'none, it is judged'}")

    # ---- leases of guests

    @property
    def _owner(self) -> LeaseOwner:
        assert self._buffer.lease_owner is not None, f"host {self._buffer.here} owns no leases of guests"
        return self._buffer.lease_owner

    def _open_leases(self, caller: Identity, request: ask.OpenLeases) -> say.Done:
        self._owner.open(request)
        return say.Done()

    def _open_validation(self, caller: Identity, request: ask.OpenValidation) -> say.Done:
        self._owner.open_validation(request)
        return say.Done()

    def _next_delivery(
        self, caller: Identity, request: ask.NextDelivery
    ) -> say.DeliveredLease | say.Complete | say.NotYet:
        """Bounded by how long nothing was delivered, and not by how long a step takes to generate."""
        buffer, owner, worker = self._buffer, self._owner, caller.worker
        owner.want(worker, request)

        def ready() -> say.DeliveredLease | say.Complete | None:
            topic = delivered_topic(request.stage)
            is_everywhere = buffer.tree.announced(topic, request.step) is not None
            return owner.next(worker, request, is_everywhere=is_everywhere)

        answer: say.WorkerReply | None = buffer.monitor.wait(ready, request.held_seconds)
        if isinstance(answer, (say.DeliveredLease, say.Complete)):
            return answer
        most = buffer.plan.spec.rollout.generators_deadline_seconds
        if (seconds := owner.idle_seconds()) >= most:
            words = f"nothing was delivered for {seconds:.0f} s (rollout.generatorsDeadlineSeconds: {most})"
            raise DeadlineExceeded(f"{owner.explain(worker, request)}; {words}")
        return say.NotYet()

    def _release_delivery(self, caller: Identity, request: ask.ReleaseDelivery) -> say.Done:
        self._owner.release(caller.worker, request)
        return say.Done()

    def _ask_guests(self, caller: Identity, request: ask.AskGuests) -> say.GuestFigures:
        return self._owner.figures()

    def _tell_outcomes(self, caller: Identity, request: ask.TellOutcomes) -> say.Done:
        route = self._buffer.leases.routes[request.stage]
        generator = route.generator_of(caller.worker)
        assert generator is not None, f"{caller.worker} draws nothing in {request.stage}"
        key = route.round_key(request.step, request.number)
        self._buffer.tree.contribute(outcomes_topic(request.stage), key, generator, request.payload)
        return say.Done()

    def _hear_outcomes(self, caller: Identity, request: ask.HearOutcomes) -> say.Said | say.NotYet:
        topic = outcomes_topic(request.stage)
        key = self._buffer.leases.routes[request.stage].round_key(request.step, request.number)

        def late_outcomes() -> RLJobError:
            late, kind = self._buffer.lateness.of_gathering(topic, key)
            which = f"round {request.number} of {request.stage}, step {request.step}"
            return kind(
                f"waited {request.waited:.1f} s for {which}. Missing: {'; '.join(late) or 'none, all have reported'}"
            )

        return self._buffer.monitor.poll(request, partial(self._announced, topic, key), late_outcomes)

    # ---- reports and what the lead says

    def _report(self, caller: Identity, request: ask.SendReport) -> say.Done:
        self._buffer.tree.contribute(request.topic, request.step, self._buffer.ordinal(caller.worker), request.payload)
        return say.Done()

    def _collect(self, caller: Identity, request: ask.Collect) -> say.Said | say.NotYet:
        def late_reports() -> RLJobError:
            late, kind = self._buffer.lateness.of_gathering(request.topic, request.step)
            return kind(_late_reports(request.step, request.waited, late, request.topic))

        return self._buffer.monitor.poll(request, lambda: self._announced(request.topic, request.step), late_reports)

    def _announced(self, topic: str, step: int) -> say.Said | None:
        payload = self._buffer.tree.announced(topic, step)
        return None if payload is None else say.Said(payload=payload)

    def _announce(self, caller: Identity, request: ask.Announce) -> say.Done:
        assert self._buffer.here == self._buffer.shape.root, f"{caller.worker} is not on the host of the lead"
        self._buffer.tree.tell(request.topic, request.step, request.payload)
        return say.Done()

    def _await(self, caller: Identity, request: ask.Await) -> say.Said | say.NotYet:
        announced = partial(self._announced, request.topic, request.step)
        return self._buffer.monitor.poll(request, announced, lambda: self._late_announcement(request))

    def _late_announcement(self, request: ask.Await) -> RLJobError:
        lateness, root = self._buffer.lateness, self._buffer.shape.root
        head = f"waited {request.waited:.1f} s for the {request.topic} on step {request.step}"
        if request.topic == VERDICT:
            late, kind = lateness.of_gathering(REPORT, request.step)
            if late:
                return kind(f"{head}: {_late_reports(request.step, request.waited, late)}")
        said = lateness.last_words(root, 0)
        return DeadlineExceeded(f"{head} from the lead, rank 0 of group {root.group} (host {root}): {said}")

    def _request_stop(self, caller: Identity, request: ask.RequestStop) -> say.Done:
        self._buffer.tree.request_stop()
        return say.Done()

    def _is_stop_requested(self, caller: Identity, request: ask.IsStopRequested) -> say.Flag:
        return say.Flag(value=self._buffer.tree.is_stop_requested)


def _of_weights(answer: Callable[[Weights, WorkerId, Any], Any]) -> Callable[[WorkerSide, Identity, Any], Any]:
    return lambda side, caller, request: answer(side._buffer.weights, caller.worker, request)


def _late_reports(step: int, seconds: float, late: list[str], topic: str = REPORT) -> str:
    what = f"reports of step {step}" if topic == REPORT else f"{topic} of step {step}"
    return f"waited {seconds:.1f} s for the {what}. Missing: " + ("; ".join(late) or "none, they climb")


_ANSWERED_BY_STATE = (
    *(ask.GetRows, ask.NextChunk, ask.HearOutcomes, ask.Collect, ask.Await, ask.Drain, ask.NextDelivery),
    *(ask.ReleaseRows, ask.ReleaseVersion, ask.ReleaseChunk, ask.SkipVersion, ask.ReleaseDelivery),
)
"""Waits, which raise the cause themselves unless what they wait for is ready; and what is given back."""

_ANSWERS: Mapping[type, Callable[[WorkerSide, Identity, Any], Any]] = {
    ask.WorkerHello: WorkerSide._hello,
    ask.SetStatus: WorkerSide._set_status,
    ask.AskStatus: WorkerSide._ask_status,
    ask.ReserveRows: WorkerSide._reserve_rows,
    ask.SealRows: WorkerSide._seal_rows,
    ask.GetRows: WorkerSide._get_rows,
    ask.ReleaseRows: WorkerSide._release_rows,
    ask.Drain: WorkerSide._drain,
    ask.TakeLease: WorkerSide._take_lease,
    ask.OpenLeases: WorkerSide._open_leases,
    ask.OpenValidation: WorkerSide._open_validation,
    ask.NextDelivery: WorkerSide._next_delivery,
    ask.ReleaseDelivery: WorkerSide._release_delivery,
    ask.AskGuests: WorkerSide._ask_guests,
    ask.TellOutcomes: WorkerSide._tell_outcomes,
    ask.HearOutcomes: WorkerSide._hear_outcomes,
    ask.SendReport: WorkerSide._report,
    ask.Collect: WorkerSide._collect,
    ask.Announce: WorkerSide._announce,
    ask.Await: WorkerSide._await,
    ask.RequestStop: WorkerSide._request_stop,
    ask.IsStopRequested: WorkerSide._is_stop_requested,
    ask.OpenVersion: _of_weights(Weights.open),
    ask.ReserveChunk: _of_weights(Weights.reserve),
    ask.SealChunk: _of_weights(Weights.seal),
    ask.CloseVersion: _of_weights(Weights.close),
    ask.ReleaseVersion: _of_weights(Weights.release_version),
    ask.NextChunk: _of_weights(Weights.next),
    ask.ReleaseChunk: _of_weights(Weights.release),
    ask.SkipVersion: _of_weights(Weights.skip),
}
