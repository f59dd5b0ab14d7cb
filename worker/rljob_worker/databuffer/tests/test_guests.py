"""Guests over real data buffers: leases, rows and weights, however guests come and go."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rljob_api.pipeline.meshes import Mesh
from rljob_api.planning.plan import ElasticPlan, Plan
from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.batch import Batch
from rljob_worker.databuffer.client import BufferClient
from rljob_worker.databuffer.protocol import worker_answers as say
from rljob_worker.databuffer.protocol.errors import OutOfOrder
from rljob_worker.databuffer.routes.guest_route import VALIDATION_PIECES
from rljob_worker.databuffer.server.process import serve_buffer, settings_from
from rljob_worker.databuffer.tests.gang import Gang, group, plan_of, rows, stage
from rljob_worker.errors import DeadlineExceeded, PeerLost
from rljob_worker.tests.waiting import wait_for

EDGE = "weights/actor"
NUM_GUESTS = 3
BATCH, MEMBERS = 8, 2


def elastic_plan(
    owners: int = 2, *, guests: int = NUM_GUESTS, lease_rows: int = 4, tls: bool = False, **rollout: Any
) -> Plan:
    """8 groups of 2 rows, ranks of `owners` hosts, leases of 2 groups; staleness 1."""
    guest_group = group("rollout", guests, 1, ["a"])
    guest_group = guest_group.model_copy(update={"elastic": ElasticPlan(min=1, max=guests)})
    made = stage("a", "train", Mesh(dp=owners)).model_copy(update={"generated_in": "rollout", "run": "Rollout"})
    groups = [guest_group, group("train", owners, 1, ["a"])]
    weights = ("train", "rollout")
    plan = plan_of(groups, [made], {}, batch_size=BATCH, group_size=MEMBERS, weights=weights, tls=tls)
    fields = {"lease_rows": lease_rows, "max_staleness": 1, **rollout}
    spec = plan.spec.model_copy(update={"rollout": plan.spec.rollout.model_copy(update=fields)})
    return plan.model_copy(update={"spec": spec, "lead_group": "train"})


class Job:
    """Data buffers of the gang, in this process, and guests that a test starts and ends."""

    def __init__(self, plan: Plan, directory: Path, retry_seconds: float = TEST_TIMEOUT_SECONDS) -> None:
        self.gang, self.plan = Gang(plan, directory), plan
        self.seconds = {"RLJOB_BUFFER_RETRY_SECONDS": str(retry_seconds)}
        self.seconds["RLJOB_BUFFER_START_SECONDS"] = str(TEST_TIMEOUT_SECONDS)
        self._guests: dict[int, contextlib.ExitStack] = {}
        self._working: list[tuple[BufferClient, Future[None]]] = []
        self.pool = ThreadPoolExecutor(8)

    @contextlib.contextmanager
    def running(self) -> Iterator[Job]:
        self.gang.write_files()
        with contextlib.ExitStack() as stack:
            stack.callback(self._end_guests)
            stack.callback(self.gang.close)
            stack.enter_context(self.pool)
            for item in self.plan.gang:
                for host in range(item.replicas):
                    settings = settings_from(self.gang.environment(item.name, host) | self.seconds)
                    self.gang.ready[f"{item.name}-{host}"] = stack.enter_context(serve_buffer(settings))
            self.write_book()
            try:
                yield self
            finally:
                for client, _ in self._working:
                    with contextlib.suppress(PeerLost):
                        client.request_stop()
            for _, working in self._working:
                working.result(TEST_TIMEOUT_SECONDS)

    def work(self, number: int, names: list[str] | None = None) -> None:
        """A new guest that works until it is stopped."""
        client = self.guest(number)
        self._working.append((client, self.pool.submit(make_all, client, names)))

    def write_book(self) -> None:
        for guest in range(self.plan.group("rollout").replicas):
            self.gang.ready.setdefault(f"rollout-{guest}", {"port": 9})
        self.gang.write_book()

    def guest(self, number: int) -> BufferClient:
        """A new guest of this number."""
        stack = self._guests[number] = contextlib.ExitStack()
        settings = settings_from(self.gang.environment("rollout", number) | self.seconds)
        self.gang.ready[f"rollout-{number}"] = stack.enter_context(serve_buffer(settings))
        self.write_book()
        return self.gang.client("rollout", number)

    def end(self, number: int) -> None:
        """A guest that leaves."""
        self._guests.pop(number).close()

    def _end_guests(self) -> None:
        for number in list(self._guests):
            self.end(number)

    def trainers(self) -> list[BufferClient]:
        return [self.gang.client("train", rank) for rank in range(self.plan.group("train").num_workers)]


def drawn(lease: say.GuestLease) -> Batch:
    return rows([number * MEMBERS + member for number in range(lease.first, lease.end) for member in range(MEMBERS)], 2)


def lease_of(guest: BufferClient) -> say.GuestLease | None:
    """The next lease; None when there is nothing more."""
    lease = wait_for(guest.next_lease)
    return lease if lease.stage else None


def make_all(guest: BufferClient, names: list[str] | None = None) -> None:
    """Work until there is nothing more."""
    while (lease := lease_of(guest)) is not None:
        if names is not None:
            names.append(f"{lease.step}/{lease.rank}/{lease.index}")
        guest.deliver(lease, drawn(lease), b"report")


def received(trainer: BufferClient, step: int) -> list[int]:
    """Row ids of a step, by lease."""
    parts = {}
    for one in trainer.deliveries("a", step):
        assert one.report == b"report" and one.index not in parts
        assert one.batch["text"].to_list() == [f"row {row}" for row in one.batch.row_ids.tolist()]
        parts[one.index] = one.batch.row_ids.tolist()
    return [row for index in sorted(parts) for row in parts[index]]


def rows_of(step: int, rank: int, owners: int = 2) -> list[int]:
    """Rows of a rank: an equal part of 16 a step."""
    size = BATCH * MEMBERS // owners
    first = (step - 1) * BATCH * MEMBERS + rank * size
    return list(range(first, first + size))


def step_of_all(trainers: Sequence[BufferClient], step: int) -> None:
    with ThreadPoolExecutor(len(trainers)) as pool:
        results = list(pool.map(lambda trainer: received(trainer, step), trainers))
    assert results == [rows_of(step, rank, len(trainers)) for rank in range(len(trainers))]


@pytest.mark.parametrize("owners", [1, 2])
def test_guests_that_come_late_and_leave_draw_every_row_of_every_step_once(tmp_path: Path, owners: int) -> None:
    with Job(elastic_plan(owners), tmp_path).running() as job:
        trainers, names = job.trainers(), list[str]()
        for trainer in trainers:
            trainer.open_leases(1, 2, 0)
        job.work(0, names)
        step_of_all(trainers, 1)
        job.work(2, names)
        for trainer in trainers:
            trainer.open_leases(1, 3, 0)
        step_of_all(trainers, 2)
        step_of_all(trainers, 3)
        assert len(names) == len(set(names)) == 12  # 4 leases a step
        assert sum(trainer.guests().num_there for trainer in trainers) == 2


def test_what_a_guest_that_leaves_has_is_drawn_by_another_and_its_name_may_come_back(tmp_path: Path) -> None:
    with Job(elastic_plan(), tmp_path).running() as job:
        trainers = job.trainers()
        for trainer in trainers:
            trainer.open_leases(1, 1, 0)
        leaving = job.guest(0)
        lease = lease_of(leaving)
        assert lease is not None and (lease.version, lease.end - lease.first) == (0, 2)
        job.end(0)
        names = list[str]()
        job.work(0, names)
        step_of_all(trainers, 1)
        assert f"{lease.step}/{lease.rank}/{lease.index}" in names
        assert [sum(one.guests().given_again for one in trainers), trainers[0].guests().num_lost] == [1, 0]


def test_a_stopped_guest_returns_its_lease_and_takes_no_more(tmp_path: Path) -> None:
    with Job(elastic_plan(1), tmp_path).running() as job:
        (trainer,) = job.trainers()
        trainer.open_leases(1, 1, 0)
        stopped = job.guest(0)
        assert lease_of(stopped) is not None
        stopped.request_stop()
        assert lease_of(stopped) is None
        job.work(1)
        step_of_all([trainer], 1)


def test_pieces_of_a_validation_are_leased_before_the_steps_after_it_and_come_without_rows(tmp_path: Path) -> None:
    plan = elastic_plan()
    data = plan.spec.data.model_copy(update={"validation": plan.spec.data.train})
    plan = plan.model_copy(update={"spec": plan.spec.model_copy(update={"data": data})})
    with Job(plan, tmp_path).running() as job:
        trainers = job.trainers()
        for trainer in trainers:
            trainer.open_validation(0, 0)
        leaving = job.guest(0)
        lease = lease_of(leaving)
        assert lease is not None and (lease.stage, lease.step, lease.version) == (VALIDATION_PIECES, 0, 0)
        job.end(0)
        for trainer in trainers:
            trainer.open_leases(1, 1, 0)
        names, working = list[str](), job.guest(1)
        for _ in range(8):  # 2 ranks, with 2 pieces each as there are 3 guests at most, and 2 leases of step 1
            lease = lease_of(working)
            assert lease is not None
            names.append(f"{lease.stage} {lease.first}")
            is_piece = lease.stage == VALIDATION_PIECES
            working.deliver(lease, rows([], 2) if is_piece else drawn(lease), f"{lease.first}".encode())
        with ThreadPoolExecutor(2) as pool:
            reports = pool.map(lambda one: {of.report for of in one.deliveries(VALIDATION_PIECES, 0)}, trainers)
            assert list(reports) == [{b"0", b"1"}, {b"2", b"3"}]
        pieces = [f"{VALIDATION_PIECES} {number}" for number in range(4)]
        assert names[:2] == pieces[2:] and set(pieces) < set(names), "before the step after it, at each owner"


def test_a_guest_that_is_late_is_not_waited_for(tmp_path: Path) -> None:
    with Job(elastic_plan(1, lease_seconds=1), tmp_path).running() as job:
        (trainer,) = job.trainers()
        trainer.open_leases(1, 1, 0)
        slow = job.guest(0)
        lease = lease_of(slow)
        assert lease is not None
        job.work(1)
        step_of_all([trainer], 1)
        slow.deliver(lease, drawn(lease), b"report")
        slow.drain()
        figures = trainer.guests()
        assert (figures.given_again, figures.dropped_late, figures.num_there) == (1, 1, 2)


def test_a_job_that_ends_ends_its_guests(tmp_path: Path) -> None:
    job = Job(elastic_plan(1), tmp_path)
    with ThreadPoolExecutor(1) as pool, contextlib.ExitStack() as guests:
        with job.running():
            (trainer,) = job.trainers()
            settings = settings_from(job.gang.environment("rollout", 0) | job.seconds)
            job.gang.ready["rollout-0"] = guests.enter_context(serve_buffer(settings))
            job.write_book()
            client = job.gang.client("rollout", 0)
            working = pool.submit(make_all, client)
            wait_for(lambda: trainer.guests().num_there == 1)
        working.result(TEST_TIMEOUT_SECONDS)


def test_two_guests_of_one_name_are_refused_until_the_first_is_lost(tmp_path: Path) -> None:
    with Job(elastic_plan(1), tmp_path, retry_seconds=0.5).running() as job:
        (trainer,) = job.trainers()
        trainer.open_leases(1, 1, 0)
        first = job.guest(0)
        assert lease_of(first) is not None
        other = job.gang.directory / "other"
        other.mkdir()
        environment = job.gang.environment("rollout", 0) | job.seconds | {"RLJOB_BUFFER": str(other / "sock")}
        with serve_buffer(settings_from(environment)):
            second = BufferClient(other / "sock", first.identity)
            with pytest.raises(PeerLost, match="two of one name are refused"):
                lease_of(second)
            second.close()
        assert trainer.guests().num_there == 1


def foreign_guest(job: Job, **other: str) -> Any:
    """Settings of a data buffer of guest 0 that differ from the job's."""
    return settings_from(job.gang.environment("rollout", 0) | job.seconds | other)


def test_a_guest_of_another_attempt_is_refused_by_name(tmp_path: Path) -> None:
    with Job(elastic_plan(1), tmp_path, retry_seconds=0.5).running() as job:
        (trainer,) = job.trainers()
        trainer.open_leases(1, 1, 0)
        words = "rollout-0 is of attempt 0, this data buffer serves attempt 1"
        settings = foreign_guest(job, RLJOB_ATTEMPT="0")
        with serve_buffer(settings), pytest.raises(PeerLost, match=words):
            lease_of(job.gang.client("rollout", 0, attempt=0))
        assert trainer.guests().num_there == 0


def test_a_guest_of_another_plan_is_refused_by_name(tmp_path: Path) -> None:
    with Job(elastic_plan(1), tmp_path, retry_seconds=0.5).running() as job:
        (trainer,) = job.trainers()
        trainer.open_leases(1, 1, 0)
        other = elastic_plan(1, lease_rows=2)
        (tmp_path / "other.json").write_text(json.dumps(other.to_json()))
        words = f"rollout-0 runs plan {other.hash()[:12]}, this data buffer serves"
        settings = foreign_guest(job, RLJOB_PLAN=str(tmp_path / "other.json"))
        with serve_buffer(settings), pytest.raises(PeerLost, match=words):
            lease_of(job.gang.client("rollout", 0, plan_hash=other.hash()))
        assert trainer.guests().num_there == 0


def test_a_guest_of_another_image_is_refused_by_name(tmp_path: Path) -> None:
    with Job(elastic_plan(1), tmp_path, retry_seconds=0.5).running() as job:
        (trainer,) = job.trainers()
        trainer.open_leases(1, 1, 0)
        settings = foreign_guest(job)
        other = replace(settings, identity=replace(settings.identity, code="0123456789ab"))
        words = r"host rollout-0 runs other code \(0123456789ab\) than this data buffer of host train-0 .*images differ"
        with serve_buffer(other), pytest.raises(PeerLost, match=words):
            lease_of(job.gang.client("rollout", 0))
        assert trainer.guests().num_there == 0


def test_guests_with_certificates_take_leases_and_give_weights_to_each_other(tmp_path: Path) -> None:
    with Job(elastic_plan(1, guests=8, tls=True), tmp_path).running() as job:
        (trainer,) = job.trainers()
        trainer.open_leases(1, 1, 0)
        send([trainer], 0)
        for number in range(4):  # the last has the second or the first to ask
            assert weights_at(job.guest(number), 0) == expected(0, 1)
        job.work(7)
        step_of_all([trainer], 1)


def test_a_wait_for_generators_is_bounded_and_says_who_has_what(tmp_path: Path) -> None:
    with Job(elastic_plan(1, generators_deadline_seconds=1), tmp_path).running() as job:
        (trainer,) = job.trainers()
        trainer.open_leases(1, 1, 0)
        assert lease_of(job.guest(0)) is not None
        words = "lease 0 of rank 0, a, step 1: host rollout-0 has it.*lease 1 of rank 0, a, step 1: nobody has it"
        with pytest.raises(DeadlineExceeded, match=f"{words}.*ask this host: rollout-0.*generatorsDeadlineSeconds: 1"):
            received(trainer, 1)


# ---- weights


def send(trainers: Sequence[BufferClient], version: int, chunks: int = 3) -> None:
    for source, trainer in enumerate(trainers):
        with trainer.sending(version, EDGE) as stream:
            for index in range(chunks):
                stream.reserve(1000)[:] = version * 16 + source * 4 + index
                stream.seal(b"table")


def weights_at(guest: BufferClient, version: int) -> dict[tuple[int, int], int]:
    return {(chunk.source, chunk.index): int(np.unique(chunk.data).item()) for chunk in guest.receive(version, EDGE)}


def expected(version: int, sources: int = 2, chunks: int = 3) -> dict[tuple[int, int], int]:
    return {(s, i): version * 16 + s * 4 + i for s in range(sources) for i in range(chunks)}


def test_guests_get_versions_in_any_order_also_before_they_are_there(tmp_path: Path) -> None:
    with Job(elastic_plan(), tmp_path).running() as job:
        trainers = job.trainers()
        send(trainers, 0)
        first, second = job.guest(0), job.guest(1)
        assert weights_at(first, 0) == expected(0)
        coming = job.pool.submit(weights_at, first, 1)
        assert not coming.done()
        send(trainers, 1)
        assert coming.result(TEST_TIMEOUT_SECONDS) == expected(1)
        assert weights_at(second, 1) == expected(1)
        assert weights_at(second, 0) == expected(0), "an older one, for a lease that was given again"
        assert weights_at(first, 0) == expected(0)
        for trainer in trainers:
            trainer.release_version(0, EDGE)
        late = job.guest(2)
        with pytest.raises(OutOfOrder, match="nobody holds version 0 of weights/actor any more"):
            weights_at(late, 0)
        assert weights_at(late, 1) == expected(1)


def test_a_guest_gives_what_it_has_to_others_and_its_loss_is_no_matter(tmp_path: Path) -> None:
    with Job(elastic_plan(1, guests=8), tmp_path, retry_seconds=1.0).running() as job:
        trainers = job.trainers()
        guests = [job.guest(number) for number in range(6)]
        waiting = [job.pool.submit(weights_at, guest, 0) for guest in guests[:4]]
        wait_for(lambda: all(not one.done() for one in waiting))
        send(trainers, 0)
        assert [one.result(TEST_TIMEOUT_SECONDS) for one in waiting] == [expected(0, 1)] * 4
        job.end(0)
        # guests 4 and 5 have guest 1 or the source to ask, whoever is there
        assert [weights_at(guest, 0) for guest in guests[4:]] == [expected(0, 1)] * 2


def test_versions_that_nobody_reads_make_room_for_new_ones(tmp_path: Path) -> None:
    with Job(elastic_plan(1), tmp_path).running() as job:
        trainers, guest = job.trainers(), job.guest(0)
        for version in range(12):  # of 4 chunks each, in 32 slots
            send(trainers, version, chunks=4)
            assert weights_at(guest, version) == expected(version, 1, 4)
            trainers[0].release_version(version, EDGE)
