"""Leases over data buffers: real ones with generators of different speed, and simulated ones where somebody stalls."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from rljob_api.planning.plan import Plan
from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.databuffer.protocol import worker_calls as ask
from rljob_worker.databuffer.routes.hosts import WorkerId
from rljob_worker.databuffer.routes.job_tree import VERDICT
from rljob_worker.databuffer.tests.gang import in_process, two_stages
from rljob_worker.databuffer.tests.simulation.job import Own, SimulatedJob
from rljob_worker.databuffer.tests.simulation.scenario import DEADLINE_SECONDS
from rljob_worker.errors import DeadlineExceeded, RLJobError


def leased(generators: int, owners: int, **options: Any) -> Plan:
    """Stage `a` samples on that many hosts, `b` is on the hosts of the lead."""
    plan = two_stages((generators, 1), (owners, 1), balance="Tokens", **options)
    a, b = plan.stages
    return plan.model_copy(update={"stages": (a.model_copy(update={"run": "Sample", "scatters_rows": True}), b)})


def test_a_fast_generator_draws_more_and_all_hear_the_same(tmp_path: Path) -> None:
    """2 owners, 3 generators; generator 1 takes a lease and goes on with it until the others find none."""
    with in_process(leased(3, 2), tmp_path) as gang, ThreadPoolExecutor(3) as pool:
        leases = [gang.client("rollout", rank).leases("a") for rank in range(3)]
        slow_began, others_ended = Event(), [Event(), Event(), Event()]

        def draw(rank: int, step: int, number: int, num_leases: int) -> tuple[list[int], bytes]:
            taken = list[int]()
            if rank != 1:
                slow_began.wait(TEST_TIMEOUT_SECONDS)
            while (lease := leases[rank].take(step, number, num_leases)) is not None:
                taken.append(lease)
                if rank == 1:
                    slow_began.set()
                    for item in (others_ended[0], others_ended[2]):
                        item.wait(TEST_TIMEOUT_SECONDS)
            slow_began.set()
            others_ended[rank].set()
            leases[rank].tell(step, number, bytes(int(index in taken) * (index + 1) for index in range(num_leases)))
            return taken, leases[rank].hear(step, number)

        for step, number, num_leases in [(1, 0, 7), (1, 1, 1), (2, 0, 3), (2, 1, 0)]:
            slow_began.clear()
            for item in others_ended:
                item.clear()
            result = list(pool.map(lambda rank: draw(rank, step, number, num_leases), range(3)))  # noqa: B023
            assert sorted(lease for taken, _ in result for lease in taken) == list(range(num_leases))
            assert [heard for _, heard in result] == [bytes(range(1, num_leases + 1))] * 3
            assert len(result[1][0]) <= 1


class Simulated:
    """A simulated job whose workers do what a test says."""

    def __init__(self, plan: Plan, seed: int) -> None:
        self.job, self.deadline = SimulatedJob(plan, seed), plan.spec.data_buffer.deadline_seconds
        self.errors: dict[str, RLJobError] = {}
        self.num_running = 0

    def own(self, worker: WorkerId) -> Own:
        return Own(self.job.pod_of(worker), worker)

    def poll(self, worker: WorkerId, request: Callable[..., ask.WaitingCall]) -> Any:
        return self.own(worker).poll(lambda waited: request(waited=waited, seconds=self.deadline), self.deadline)

    def take(self, worker: WorkerId, step: int, number: int, num_leases: int) -> int | None:
        request = partial(ask.TakeLease, stage="a", step=step, number=number, num_leases=num_leases)
        lease: int | None = self.poll(worker, request).lease
        return lease

    def begin(self, worker: WorkerId, does: Callable[[WorkerId], None]) -> None:
        def run() -> None:
            try:
                does(worker)
            except RLJobError as error:
                self.errors[str(worker)] = error
            self.num_running -= 1

        self.num_running += 1
        self.job.loop.spawn(run, self.job.pod_of(worker), self.job.loop.moment())

    def go(self) -> None:
        loop = self.job.loop
        end = loop.now + 3 * self.deadline
        loop.at(end, lambda: None)
        try:
            loop.run(lambda: loop.now >= end or not self.num_running)
        finally:
            loop.close()
        assert not self.num_running, "somebody waits for ever"


def generators(plan: Plan) -> list[WorkerId]:
    return [WorkerId("rollout", rank) for rank in range(plan.group("rollout").num_workers)]


@pytest.mark.parametrize("hosts, owners, num_leases", [(3, 1, 7), (2, 3, 2), (4, 2, 9), (3, 3, 0)])
def test_every_lease_is_taken_once_whatever_the_order(hosts: int, owners: int, num_leases: int) -> None:
    for seed in range(10):
        plan = leased(hosts, owners, deadline_seconds=DEADLINE_SECONDS, memory="1Mi")
        simulated = Simulated(plan, seed)
        taken, heard = list[int](), list[bytes]()

        def draw(worker: WorkerId) -> None:
            loop, mine = simulated.job.loop, list[int]()  # noqa: B023
            while (lease := simulated.take(worker, 5, 1, num_leases)) is not None:  # noqa: B023
                mine.append(lease)
                loop.sleep(loop.random.random() * worker.rank)
            payload = bytes(int(lease in mine) for lease in range(num_leases))
            simulated.own(worker).call(ask.TellOutcomes(stage="a", step=5, number=1, payload=payload))  # noqa: B023
            request = partial(ask.HearOutcomes, stage="a", step=5, number=1)
            heard.append(simulated.poll(worker, request).payload)  # noqa: B023
            taken.extend(mine)  # noqa: B023

        for worker in generators(plan):
            simulated.begin(worker, draw)
        simulated.go()
        assert not simulated.errors
        assert sorted(taken) == list(range(num_leases))
        assert heard == [b"\1" * num_leases] * hosts


def test_a_generator_that_stalls_is_named_at_the_deadline() -> None:
    plan = leased(3, 2, deadline_seconds=DEADLINE_SECONDS, memory="1Mi")
    simulated = Simulated(plan, 0)

    def draw(worker: WorkerId) -> None:
        simulated.own(worker).call(ask.SetStatus(status={"stage": "a", "state": "running"}))
        while simulated.take(worker, 1, 0, 5) is not None:
            if worker.rank == 1:
                return  # it works on it for ever
        simulated.own(worker).call(ask.TellOutcomes(stage="a", step=1, number=0, payload=bytes(5)))
        simulated.poll(worker, partial(ask.HearOutcomes, stage="a", step=1, number=0))

    for worker in generators(plan):
        simulated.begin(worker, draw)
    simulated.go()
    assert sorted(simulated.errors) == ["rank 0 of group rollout", "rank 2 of group rollout"]
    for error in simulated.errors.values():
        assert isinstance(error, DeadlineExceeded)
        said = str(error)
        assert "s for round 0 of a, step 1. Missing: rank 1 of group rollout (host rollout-1): last said" in said
        assert "stage a, state running" in said and "rank 0" not in said and "rank 2" not in said


def braked(reports_in_time: bool) -> Simulated:
    """Generator 0 asks for step 3 while the lead is still in step 1, on which everybody else has reported."""
    plan = leased(1, 2, deadline_seconds=DEADLINE_SECONDS, memory="1Mi")
    simulated = Simulated(plan, 0)
    lead = WorkerId("train", 0)

    def report(worker: WorkerId) -> None:
        simulated.own(worker).call(ask.SendReport(step=1, payload=b"\x93\x80\x90\xc0"))

    def generate(worker: WorkerId) -> None:
        assert simulated.take(worker, 1, 0, 1) == 0
        report(worker)
        assert simulated.take(worker, 3, 0, 1) == 0
        assert simulated.job.loop.now > 1009.0

    def train(worker: WorkerId) -> None:
        simulated.job.loop.sleep(9.0 if reports_in_time else 100.0)
        report(worker)
        if worker == lead:
            simulated.own(worker).call(ask.Announce(topic=VERDICT, step=1, payload=b"go on"))

    simulated.begin(WorkerId("rollout", 0), generate)
    simulated.begin(WorkerId("train", 1), report)
    simulated.begin(lead, train)
    simulated.go()
    return simulated


def test_no_lease_of_a_step_is_given_before_the_one_two_before_it_is_done() -> None:
    assert not braked(reports_in_time=True).errors
    (error,) = braked(reports_in_time=False).errors.values()
    assert isinstance(error, DeadlineExceeded)
    assert "for a lease of a, step 3, round 0, which hosts train-0, train-1 give once step 1 is done" in str(error)
    assert "Missing: rank 0 of group train (host train-0)" in str(error)
