"""What a seed means: a plan, what its workers do, what goes wrong when, and what is allowed to come of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from random import Random

from rljob_api.pipeline.meshes import Mesh
from rljob_api.planning.plan import Plan
from rljob_worker.databuffer.links.connection import RENEW_SECONDS
from rljob_worker.databuffer.links.link import PING_SECONDS
from rljob_worker.databuffer.links.message_calls import CALL_SECONDS
from rljob_worker.databuffer.protocol.errors import Bug
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.databuffer.tests.gang import group, plan_of, stage, two_stages
from rljob_worker.databuffer.tests.simulation.job import Pod, SimulatedJob
from rljob_worker.databuffer.tests.simulation.loop import START
from rljob_worker.databuffer.tests.simulation.network import FOREVER, Flip, Loss, Swap
from rljob_worker.databuffer.tests.simulation.workers import SimulatedWorker, workers_of

DEADLINE_SECONDS = 60.0
RETRY_SECONDS = 5.0
START_SECONDS = 15.0
SPARE_SECONDS = 5.0
"""What a wait may take longer than its window."""
ALL_HEARD_SECONDS = 0.3
"""After which every host has heard all its neighbours."""


@cache
def plans() -> list[Plan]:
    """2 to 6 hosts; edges by ordinal and balanced, over group boundaries and within, with weights and without."""
    options = {"deadline_seconds": DEADLINE_SECONDS, "memory": "1Mi"}
    weights = {**options, "memory": "4Mi", "weights": ("train", "rollout")}
    stages = [
        stage("a", "train", Mesh(dp=2)),
        stage("b", "train", Mesh(dp=2), "Tokens"),
        stage("c", "train", Mesh(dp=2)),
    ]
    return [
        two_stages((1, 1), (1, 1), **options),
        two_stages((1, 2), (1, 2), balance="Tokens", **weights),
        two_stages((2, 1), (1, 1), balance="Tokens", **options),
        two_stages((2, 1), (2, 1), **options),
        two_stages((2, 1), (2, 2), tp=4, balance="Tokens", **options),
        two_stages((3, 1), (1, 2), balance="Tokens", needs_groups=True, **weights),
        two_stages((2, 2), (3, 1), producer_balance="Tokens", balance="Tokens", **options),
        two_stages((4, 1), (2, 1), **weights),
        two_stages((3, 1), (3, 1), balance="Tokens", **options),
        ahead(two_stages((3, 1), (1, 2), balance="Tokens", **weights)),
        plan_of(
            [group("train", 2, 1, ["a", "b", "c"])], stages, {"a->b": ["ids", "score"], "b->c": ["ids"]}, **options
        ),
    ]


def ahead(plan: Plan) -> Plan:
    """The plan with four versions of weights at once, for which a host may come late."""
    rollout = plan.spec.rollout.model_copy(update={"max_staleness": 1})
    return plan.model_copy(update={"spec": plan.spec.model_copy(update={"rollout": rollout})})


def draw_late_hosts(random: Random, job: SimulatedJob, num_steps: int) -> None:
    """Some hosts hear of a version after the first at first: one that passes nothing on, which the host above may give
    what it has missed, or all that receive, which only sources may."""
    (route,) = job.pods[Host("rollout", 0)].buffer.weights_routes.by_edge.values()
    receivers = [host for host in job.pods if route.readers(host)]
    leaves = [host for host in receivers if not any(route.children(source, host) for source in route.sources)]
    first_version = random.randint(1, num_steps)
    for host in random.choice([leaves, receivers]):
        job.pods[host].first_version = first_version


@dataclass
class Fault:
    """What goes wrong. Times are seconds from the start of the job."""

    name: str = "nothing"
    hosts: tuple[Host, ...] = ()
    """An error names one of these, unless nothing may come of it."""
    start: float = 0.0
    end: float = 0.0
    is_harmless: bool = True
    """Everybody must get everything; else an error may come of it."""
    words: tuple[str, ...] = ()
    """An error says one of these, if not the name of a host."""
    noticed: float = PING_SECONDS + CALL_SECONDS + RETRY_SECONDS
    """Seconds from its start until it is known to everybody who waits; FOREVER: their deadlines end waits."""

    def __str__(self) -> str:
        hosts = " and ".join(map(str, self.hosts))
        return f"{self.name} of {hosts or 'nobody'} from {self.start:.2f} to {self.end:.2f} s"


@dataclass
class Run:
    """One job, from its seed."""

    seed: int | str
    plan: Plan
    fault: Fault
    job: SimulatedJob
    num_steps: int
    row_length: int
    """Values of a row, 0 for a few."""
    pace: float
    """Longest that a worker computes, several times a step."""
    ends_pods: bool
    """Whether a data buffer ends with its workers, or stays until all are done."""
    workers: list[SimulatedWorker] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.job.started = self._start_workers
        for host in self.job.pods:
            self._start_workers(host)

    def _start_workers(self, host: Host) -> None:
        pod = self.job.pods[host]
        mine = [
            SimulatedWorker(self.job, worker, self.num_steps, self.row_length, self.pace, lambda: end(pod))
            for worker in workers_of(self.plan, host)
        ]
        self.workers += mine

        def end(pod: Pod) -> None:
            if self.ends_pods and all(worker.is_over for worker in mine):
                self.job.end(pod)

    def go(self) -> Run:
        """Until all workers are done, or should be since long."""
        latest = START + DEADLINE_SECONDS + self._back + 30.0
        loop = self.job.loop
        loop.at(latest, lambda: None)
        try:
            loop.run(lambda: loop.now >= latest or all(worker.is_done for worker in self.workers))
        finally:
            loop.close()
        return self

    # ---- what is wrong with it

    def problems(self) -> list[str]:
        result = [problem for worker in self.workers for problem in self._problems_of(worker)]
        kinds = {worker.error.exit_code for worker in self.workers if worker.error is not None}
        if len(kinds) > 1:
            result.append(f"errors of several kinds: {sorted(map(int, kinds))}")
        return result

    def _problems_of(self, worker: SimulatedWorker) -> list[str]:
        if self.job.pods[worker.pod.host] is not worker.pod or worker.pod.is_dead:
            return []
        result = [f"{worker}: wrong {what}" for what in worker.wrong]
        if not worker.is_over:
            result.append(f"{worker} has not ended: {worker.waits[-1] if worker.waits else 'it has not begun'}")
        if worker.error is not None:
            result += [f"{worker}: {problem}" for problem in self._problems_of_error(worker.error)]
        return result + [f"{worker}: {what}" for what in self._late(worker)]

    def _problems_of_error(self, error: Exception) -> list[str]:
        said = f"{type(error).__name__}: {error}"
        if self.fault.is_harmless:
            return [f"of what passes: {said}"]
        if isinstance(error, Bug):
            return [said]
        names = [f"host {host}" for host in self.fault.hosts] + list(self.fault.words)
        return [] if any(name in str(error) for name in names) else [f"does not name {' or '.join(names)}: {said}"]

    def _late(self, worker: SimulatedWorker) -> list[str]:
        result = []
        for wait in worker.waits:
            end = self.job.loop.now if wait.end is None else wait.end
            latest = wait.start + wait.seconds + SPARE_SECONDS
            if self.fault.noticed < FOREVER and not self.fault.is_harmless:
                known = START + max(self.fault.start + self.fault.noticed, self._back + PING_SECONDS)
                if self.ends_pods:  # who was given up by one that ended then finds it away, and not what it would say
                    known += PING_SECONDS + RETRY_SECONDS
                latest = min(latest, max(wait.start, known) + SPARE_SECONDS)
            if end > latest + 0.5:
                over = end - wait.start
                result.append(f"waited {over:.1f} s for {wait.what}, {end - latest + SPARE_SECONDS:.1f} s too long")
        return result

    @property
    def num_flipped(self) -> int:
        """Bits that were flipped."""
        return sum(bool(flip.what) for flip in self.job.network.flips)

    @property
    def _back(self) -> float:
        return self.fault.end if self.fault.end < FOREVER else 0.0


def run_of(seed: int | str, fault: Callable[[Random, Plan], Fault] | None = None) -> Run:
    """What a seed means. fault: instead of what the seed would draw."""
    random = Random(f"run {seed}")
    plan = random.choice(plans())
    drawn = (fault or random.choice(FAULTS))(random, plan)
    late = {drawn.hosts[0]: drawn.end} if drawn.name == "late book" else {}
    job = SimulatedJob(
        plan,
        f"events {seed}",
        late_books=late,
        # a file has the addresses themselves, which nobody else gets
        are_books_files=random.random() < 0.5 and drawn.name != "swap",
        retry_seconds=RETRY_SECONDS,
        start_seconds=START_SECONDS,
    )
    ACTS.get(drawn.name, lambda job, fault: None)(job, drawn)
    length = random.choice([0, 0, 0, 2000] if drawn.name != "flip" else [0, 2000])
    # swapped addresses pass without harm while a pod at each says that it is not the one meant
    pace, ends_pods = random.choice([0.0, 0.3]), random.random() < 0.5 and drawn.name != "swap"
    num_steps = random.randint(1, 3)
    # a late host has chunks taken for granted that it will ask for: it must live on for that, and so must who has them
    if plan.num_versions > 1 and drawn.name != "restart" and not ends_pods:
        draw_late_hosts(random, job, num_steps)
    return Run(seed, plan, drawn, job, num_steps, length, pace, ends_pods)


# ---- what goes wrong


def hosts_of(plan: Plan) -> list[Host]:
    return [Host(group.name, index) for group in plan.groups for index in range(group.replicas)]


def nothing(random: Random, plan: Plan) -> Fault:
    return Fault()


def breaks(random: Random, plan: Plan) -> Fault:
    return Fault("breaks")


def _when(random: Random) -> float:
    return random.choice([0.0, random.uniform(0.0, 1.0)])


def _noticed(start: float) -> float:
    """Seconds until a silent peer is given up: it is pinged, a call runs out, and its window passes."""
    return PING_SECONDS + CALL_SECONDS + (RETRY_SECONDS if start > ALL_HEARD_SECONDS else START_SECONDS)


def short_stall(random: Random, plan: Plan) -> Fault:
    return _stall(random, plan, random.uniform(0.1, 3.0))


def long_stall(random: Random, plan: Plan) -> Fault:
    """One that returns when it has been given up, or is about to be."""
    return _stall(random, plan, random.uniform(6.0, 20.0))


def endless_stall(random: Random, plan: Plan) -> Fault:
    return _stall(random, plan, FOREVER)


def _stall(random: Random, plan: Plan, seconds: float) -> Fault:
    """A stall between two hosts, or of one host from all; one way or both."""
    hosts = random.sample(hosts_of(plan), 2)
    name = random.choice(["loss one way", "loss both ways", "deaf", "mute", "isolated", "frozen"])
    start, is_of_two = _when(random), name.startswith("loss")
    return Fault(
        name,
        tuple(hosts) if is_of_two else (hosts[0],),
        start,
        start + seconds,
        is_harmless=seconds < RETRY_SECONDS,
        noticed=FOREVER if is_of_two else _noticed(start),
    )


def death(random: Random, plan: Plan) -> Fault:
    name = random.choice(["death", "silent death", "restart"])
    start, host = _when(random), random.choice(hosts_of(plan))
    end = start + random.choice([0.05, 1.0, 4.0, 10.0]) if name == "restart" else FOREVER
    return Fault(name, (host,), start, end, is_harmless=False, noticed=_noticed(start))


def short_swap(random: Random, plan: Plan) -> Fault:
    return _swap(random, plan, random.uniform(0.1, 10.0))


def lasting_swap(random: Random, plan: Plan) -> Fault:
    return _swap(random, plan, FOREVER)


def _swap(random: Random, plan: Plan, seconds: float) -> Fault:
    start, hosts = _when(random), tuple(random.sample(hosts_of(plan), 2))
    noticed = START_SECONDS + PING_SECONDS + CALL_SECONDS + RENEW_SECONDS
    return Fault("swap", hosts, start, start + seconds, is_harmless=seconds < START_SECONDS, noticed=noticed)


def late_book(random: Random, plan: Plan) -> Fault:
    return _late_book(random, plan, random.uniform(0.1, 10.0))


def too_late_book(random: Random, plan: Plan) -> Fault:
    return _late_book(random, plan, random.uniform(17.0, 30.0))


def _late_book(random: Random, plan: Plan, seconds: float) -> Fault:
    return Fault(
        "late book",
        (random.choice(hosts_of(plan)),),
        end=seconds,
        is_harmless=seconds < START_SECONDS,
        words=("is not in the address book yet",),
        noticed=START_SECONDS + PING_SECONDS + CALL_SECONDS,
    )


def flip(random: Random, plan: Plan) -> Fault:
    return Fault("flip", tuple(hosts_of(plan)), is_harmless=False)


FAULTS = [
    nothing,
    breaks,
    short_stall,
    long_stall,
    long_stall,
    endless_stall,
    death,
    short_swap,
    lasting_swap,
    late_book,
    too_late_book,
]


# ---- how it is done


def _loses(job: SimulatedJob, fault: Fault, sources: set[Host], targets: set[Host]) -> None:
    is_late = job.loop.random.random() < 0.5
    loss = Loss(frozenset(sources), frozenset(targets), START + fault.start, START + fault.end, is_late)
    job.network.losses.append(loss)


def _one_way(job: SimulatedJob, fault: Fault) -> None:
    _loses(job, fault, {fault.hosts[0]}, {fault.hosts[1]})


def _both_ways(job: SimulatedJob, fault: Fault) -> None:
    _loses(job, fault, {fault.hosts[0]}, {fault.hosts[1]})
    _loses(job, fault, {fault.hosts[1]}, {fault.hosts[0]})


def _deaf(job: SimulatedJob, fault: Fault) -> None:
    _loses(job, fault, set(job.pods), {fault.hosts[0]})


def _mute(job: SimulatedJob, fault: Fault) -> None:
    _loses(job, fault, {fault.hosts[0]}, set(job.pods))


def _isolated(job: SimulatedJob, fault: Fault) -> None:
    _deaf(job, fault)
    _mute(job, fault)


def _frozen(job: SimulatedJob, fault: Fault) -> None:
    pod = job.pods[fault.hosts[0]]

    def freeze() -> None:
        pod.frozen_until = START + fault.end

    if fault.end == FOREVER:
        _dies(job, fault, silently=True)
    else:
        job.loop.after(fault.start, freeze)


def _dies(job: SimulatedJob, fault: Fault, silently: bool) -> None:
    (host,) = fault.hosts
    job.loop.after(fault.start, partial(job.kill, host, silently=silently))
    if fault.name == "restart":
        job.loop.after(fault.end, partial(job.restart, host))


def _swaps(job: SimulatedJob, fault: Fault) -> None:
    job.network.swaps.append(Swap(*fault.hosts, START + fault.start, START + fault.end))


def _breaks(job: SimulatedJob, fault: Fault) -> None:
    job.network.breaks = 0.3


def _flips(job: SimulatedJob, fault: Fault) -> None:
    random = job.loop.random
    where = {(random.choice(BODIES), int(20 * random.random() ** 2)) for _ in range(NUM_FLIPS)}
    job.network.flips = [Flip(*body, random.random()) for body in sorted(where)]


NUM_FLIPS = 10
"""Of one job, though not all of the bodies need be sent."""
BODIES = ["deliver", "deliver", "deliver", "answer to deliver", "ticket", "schema", "record", "record", "checksum"]
"""What a bit is flipped of."""

ACTS: dict[str, Callable[[SimulatedJob, Fault], None]] = {
    "breaks": _breaks,
    "loss one way": _one_way,
    "loss both ways": _both_ways,
    "deaf": _deaf,
    "mute": _mute,
    "isolated": _isolated,
    "frozen": _frozen,
    "death": partial(_dies, silently=False),
    "silent death": partial(_dies, silently=True),
    "restart": partial(_dies, silently=False),
    "swap": _swaps,
    "flip": _flips,
}
