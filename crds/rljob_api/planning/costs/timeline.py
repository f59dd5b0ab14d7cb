"""When every stage of every step runs in every worker group, from seconds per stage. Pure; exact in fractions.

    start of a step in a group       the group has ended the step before; where it generates, the weights of version
                                     `generating_version` are there: the groups that train them have ended that step,
                                     and the weight sync has taken its time
    start of a stage                 the stage before it in `GroupPlan.schedule` has ended, and so have the producers
                                     of all edges into it, in the same step
    end of a step in a group         its last stage has ended, and there is the verdict that governs it: all groups
                                     have ended the step `Plan.verdict_delay` before

So nobody is further ahead than the data buffers allow, which is `maxStaleness` + 2 steps of rows that are not taken.
A group that trains and generates is busy during the weight sync. A critic's warm-up, validation and checkpoints take no
time here.

What the ends of the last `maxStaleness` + 1 steps are, relative to one another, decides all that follows: once they are
as they were p steps before, the schedule repeats every p steps. That is the steady state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from rljob_api.planning.plan import GroupPlan, Plan
from rljob_api.planning.weights.versions import generating_version

WEIGHT_SYNC = "weights"
"""The name that a weight sync has among stages."""

MAX_STEPS = 600
"""Steps that are simulated at most until the schedule repeats; then the mean of the second half of them is taken."""

MOST_DRAWN = 4
"""Steps that a timeline shows at most."""


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Seconds that stages take, by name, and a weight sync; 0 where nothing is said. Never negative."""

    stages: Mapping[str, Fraction]
    weight_sync: Fraction = Fraction()

    def of(self, stage: str) -> Fraction:
        """Seconds of a stage."""
        return self.stages.get(stage, Fraction())


@dataclass(frozen=True, slots=True)
class StageRun:
    """One stage of one step (1-based) in one group, or the weight sync after the step; in seconds."""

    group: str
    stage: str
    step: int
    start: Fraction
    end: Fraction


@dataclass(frozen=True, slots=True)
class Timeline:
    """The steady state of a plan under given times."""

    seconds_per_step: Fraction
    synchronous_seconds: Fraction
    """Seconds per step with `rollout.maxStaleness` 0."""
    idle: Mapping[str, Fraction]
    """By group: the share of time in which no stage runs there; 0 where a step takes no time."""
    length: Fraction
    """Seconds that `runs` are shown of: some whole steps."""
    runs: tuple[StageRun, ...]
    """All that overlap with the time from 0 to `length`, in the order of plan and steps; the first may begin before."""


@dataclass
class Simulation:
    """A plan that runs step by step from time 0, with the first weights there."""

    plan: Plan
    times: StageTimes
    ends: list[dict[str, Fraction]] = field(default_factory=list)
    """By step, the first at 0: when each group ended it."""
    runs: list[StageRun] = field(default_factory=list)

    def __post_init__(self) -> None:
        critic = self.plan.spec.algorithm.critic
        if critic is not None:
            algorithm = self.plan.spec.algorithm.model_copy(
                update={"critic": critic.model_copy(update={"warmup_steps": 0})}
            )
            self.plan = self.plan.model_copy(
                update={"spec": self.plan.spec.model_copy(update={"algorithm": algorithm})}
            )
        self._trainers = {group.name: trainers_of(self.plan, group.name) for group in self.plan.groups}

    def run_step(self) -> None:
        """The next step of all groups."""
        step = len(self.ends) + 1
        free = {group.name: self._start(group, step) for group in self.plan.groups}
        stage_ends = dict[str, Fraction]()
        for stage in self.plan.stages:  # in topological order, which schedules keep
            inputs = (stage_ends[edge.producer] for edge in self.plan.inputs(stage.name))
            group = stage.generated_in or stage.group
            start = max(free[group], *inputs, Fraction())
            end = start + self.times.of(stage.name)
            free[group] = stage_ends[stage.name] = end
            self.runs.append(StageRun(group, stage.name, step, start, end))
        governing = step - self.plan.verdict_delay
        verdict = max(self.ends[governing - 1].values()) if governing > 0 else Fraction()
        self.ends.append({group: max(end, verdict) for group, end in free.items()})

    def _start(self, group: GroupPlan, step: int) -> Fraction:
        """When a group may begin a step; a weight sync within the group is one of its runs."""
        start = self.ends[-1][group.name] if self.ends else Fraction()
        version = generating_version(self.plan.spec, step)
        if version == 0:
            return start
        sync = self.times.weight_sync
        for trainer in self._trainers[group.name]:
            sent = self.ends[version - 1][trainer]
            start = max(start, sent + sync)
            if trainer == group.name:
                self.runs.append(StageRun(group.name, WEIGHT_SYNC, version, sent, sent + sync))
        return start

    def state(self) -> tuple[Fraction, ...]:
        """The ends of the last steps that later ones wait for, relative to the last one of the first group."""
        ends = [end for step in self.ends[-self.plan.verdict_delay :] for end in step.values()]
        return tuple(end - ends[-1] for end in ends)


def trainers_of(plan: Plan, group: str) -> tuple[str, ...]:
    """Groups that train what a group generates with; none where it does not generate."""
    pairs = ((plan.engine(edge.source).group, plan.engine(edge.target).group) for edge in plan.weights)
    return tuple(dict.fromkeys(source for source, target in pairs if target == group))


def busy_seconds(plan: Plan, times: StageTimes, group: GroupPlan) -> Fraction:
    """Seconds of a step in which a group is not idle."""
    sync = times.weight_sync if group.name in trainers_of(plan, group.name) else Fraction()
    received = {stage.name for stage in plan.stages if stage.generated_in not in (None, group.name)}
    return sum((times.of(name) for name in group.schedule if name not in received), sync)


def with_staleness(plan: Plan, staleness: int) -> Plan:
    """A plan that differs in `rollout.maxStaleness` alone."""
    rollout = plan.spec.rollout.model_copy(update={"max_staleness": staleness})
    return plan.model_copy(update={"spec": plan.spec.model_copy(update={"rollout": rollout})})


def timeline_of(plan: Plan, times: StageTimes) -> Timeline:
    """The steady state, and how long a step takes where generation waits for the newest weights."""
    simulation = Simulation(plan, times)
    first, period = run_until_it_repeats(simulation)
    seconds = seconds_per_step(simulation, period)
    synchronous = seconds
    if plan.staleness:
        waiting = Simulation(with_staleness(plan, 0), times)
        synchronous = seconds_per_step(waiting, run_until_it_repeats(waiting)[1])
    busy = {group.name: busy_seconds(plan, times, group) for group in plan.groups}
    idle = {group: 1 - part / seconds if seconds else Fraction() for group, part in busy.items()}
    length = min(max(period, 2), MOST_DRAWN) * seconds
    # steps that run beside the first one shown are up to maxStaleness + 1 older
    shown = tuple(_window(simulation, first + plan.verdict_delay, length))
    return Timeline(seconds, synchronous, idle, length, shown)


def run_until_it_repeats(simulation: Simulation) -> tuple[int, int]:
    """(the first step that repeats, after how many steps)."""
    states = dict[tuple[Fraction, ...], int]()
    for step in range(1, MAX_STEPS + 1):
        simulation.run_step()
        # while steps are drawn with the first weights states are shorter, and so equal to none that comes later
        before = states.setdefault(simulation.state(), step)
        if before < step:
            return before + 1, step - before
    return MAX_STEPS // 2 + 1, MAX_STEPS // 2


def seconds_per_step(simulation: Simulation, period: int) -> Fraction:
    """Mean over the last `period` steps."""
    last, before = simulation.ends[-1], simulation.ends[-1 - period]
    return max(last[group] - before[group] for group in last) / period


def _window(simulation: Simulation, first: int, length: Fraction) -> Iterator[StageRun]:
    """What runs within `length` seconds from the first stage of step `first` on."""
    while len(simulation.ends) < first:
        simulation.run_step()
    start = min(run.start for run in simulation.runs if run.step == first and run.stage != WEIGHT_SYNC)
    while min(simulation.ends[-1].values()) < start + length:
        simulation.run_step()
    for run in simulation.runs:
        if run.start < run.end and run.end > start and run.start < start + length:
            yield StageRun(run.group, run.stage, run.step, run.start - start, run.end - start)
