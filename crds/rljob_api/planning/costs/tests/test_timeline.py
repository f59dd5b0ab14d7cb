"""When stages run, from seconds per stage."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_api.planning.costs.timeline import (
    Simulation,
    StageTimes,
    Timeline,
    busy_seconds,
    run_until_it_repeats,
    timeline_of,
    trainers_of,
    with_staleness,
)
from rljob_api.planning.plan import Plan
from rljob_api.tests.builders import GRPO, PPO, TWO_GROUPS, dag, make_plan

APART = make_plan(*TWO_GROUPS)
"""Group rollout: rollout, reward. Group train: reference, advantage, update."""


def on(group: str, *stages: str) -> tuple[str, ...]:
    """Stages with the group that they run in."""
    return tuple(f"{stage}, group: {group}" for stage in stages)


ROLLOUT, REWARD, REFERENCE, ADVANTAGE, UPDATE = GRPO
THREE = make_plan(
    "workerGroups=[{name: train}, {name: rollout}, {name: scores}]",
    dag(*on("rollout", ROLLOUT, REWARD), *on("scores", REFERENCE), *on("train", ADVANTAGE, UPDATE)),
)
LOOK = "name: look, run: 'm:f', after: [rollout], reads: [response_ids], writes: [x]"
SIDE = make_plan(
    "workerGroups=[{name: train}, {name: rollout}, {name: side}]",
    dag(*on("rollout", ROLLOUT), *on("train", REWARD, REFERENCE, ADVANTAGE, UPDATE), *on("side", LOOK)),
)
"""A group whose rows nobody reads."""
PLANS = {"apart": APART, "three": THREE, "side": SIDE}


def times(weights: float = 0, **stages: float) -> StageTimes:
    return StageTimes({name: Fraction(seconds) for name, seconds in stages.items()}, Fraction(weights))


def timeline(plan: Plan, staleness: int, weights: float = 0, **stages: float) -> Timeline:
    return timeline_of(with_staleness(plan, staleness), times(weights, **stages))


def test_two_groups_wait_for_each_other_in_turn_or_not_at_all():
    # S = 0: 10 s of generation, then 10 s of training; S = 1: both at once
    synchronous = timeline(APART, 0, rollout=10, update=10)
    assert (synchronous.seconds_per_step, synchronous.synchronous_seconds) == (20, 20)
    assert synchronous.idle == {"train": Fraction(1, 2), "rollout": Fraction(1, 2)}
    ahead = timeline(APART, 1, rollout=10, update=10)
    assert (ahead.seconds_per_step, ahead.synchronous_seconds) == (10, 20)
    assert ahead.idle == {"train": 0, "rollout": 0}


def test_the_slower_group_decides_once_generation_is_ahead():
    # 60 + 2 s of generation, 30 s of training: 92 s in turn, 62 s at once, in which training is idle for 32
    result = timeline(APART, 1, rollout=60, reward=2, update=30)
    assert (result.seconds_per_step, result.synchronous_seconds) == (62, 92)
    assert result.idle == {"train": Fraction(32, 62), "rollout": 0}


def test_weights_that_are_on_their_way_delay_the_generation_that_needs_them():
    # generation t waits for training t - 2: 10 + 10 + 5 s are one round of two steps; S = 2 hides the 5 s
    assert timeline(APART, 0, weights=5, rollout=10, update=10).seconds_per_step == 25
    assert timeline(APART, 1, weights=5, rollout=10, update=10).seconds_per_step == Fraction(25, 2)
    assert timeline(APART, 2, weights=5, rollout=10, update=10).seconds_per_step == 10


def test_a_group_that_generates_and_trains_is_never_idle():
    together = make_plan()
    result = timeline_of(together, times(3, rollout=60, reward=2, update=30))
    assert (result.seconds_per_step, result.synchronous_seconds, result.idle) == (95, 95, {"train": 0})
    shown = [(run.stage, run.start, run.end) for run in result.runs if run.start < 95]
    assert shown == [("rollout", 0, 60), ("reward", 60, 62), ("update", 62, 92), ("weights", 92, 95)]


def test_what_is_shown_is_the_steady_state_from_a_generation_on():
    # two rounds of 10 s of generation that training follows a step later
    result = timeline(APART, 1, rollout=10, update=6)
    assert result.length == 20
    assert [(run.stage, run.start, run.end) for run in result.runs] == [
        ("update", 0, 6),
        ("rollout", 0, 10),
        ("update", 10, 16),
        ("rollout", 10, 20),
    ]
    before, now = (run.step for run in result.runs[:2])
    assert now == before + 1


def test_a_group_that_nobody_waits_for_holds_up_the_others():
    # whoever looks on takes 50 s. With S = 2 step 8 ends once step 5 has ended everywhere: 10 + 5 x 50 s
    assert timeline(SIDE, 2, rollout=10, update=10, look=50).seconds_per_step == 50
    simulation = Simulation(with_staleness(SIDE, 2), times(rollout=10, update=10, look=50))
    for _ in range(8):
        simulation.run_step()
    assert simulation.ends[-1] == {"train": 260, "rollout": 260, "side": 410}


def test_a_step_may_take_no_time():
    result = timeline(APART, 1)
    assert (result.seconds_per_step, result.length, result.runs) == (0, 0, ())
    assert result.idle == {"train": 0, "rollout": 0}


def test_the_warm_up_of_a_critic_is_not_the_steady_state():
    # in the warm-up no weights are waited for: with S = 0 generation could be a step ahead
    plan = make_plan(*TWO_GROUPS, "algorithm={name: PPO, critic: {warmupSteps: 100}}", "stop.steps=200")
    assert timeline_of(plan, times(0, rollout=10, update=10)).seconds_per_step == 20
    assert make_plan(*TWO_GROUPS, *PPO).spec.algorithm.critic is not None


def test_a_schedule_that_does_not_repeat_is_averaged(monkeypatch):
    monkeypatch.setattr(Simulation, "state", lambda simulation: (Fraction(len(simulation.ends)),))
    simulation = Simulation(with_staleness(APART, 1), times(0, rollout=10, update=6))
    assert run_until_it_repeats(simulation) == (301, 300)
    assert timeline(APART, 1, rollout=10, update=6).seconds_per_step == 10


seconds = st.integers(0, 40).map(lambda tenths: Fraction(tenths, 10))
STAGES = ("rollout", "reward", "reference", "advantage", "update", "look")
long_seconds = seconds.map(lambda item: 10 * item)
all_times = st.builds(
    StageTimes, st.fixed_dictionaries(dict.fromkeys(STAGES, seconds) | {"look": long_seconds}), seconds
)


@settings(max_examples=60)
@given(st.sampled_from(sorted(PLANS)), st.integers(0, 3), all_times)
def test_properties_of_every_schedule(name, staleness, given_times):
    plan = with_staleness(PLANS[name], staleness)
    simulation = Simulation(plan, given_times)
    for _ in range(12 + 4 * (staleness + 1)):
        simulation.run_step()
    at = {(run.stage, run.step): run for run in simulation.runs}

    for group in plan.groups:
        runs = [run for run in simulation.runs if run.group == group.name]
        assert all(before.end <= run.start for before, run in zip(runs, runs[1:], strict=False))
        assert [run.stage for run in runs[: len(group.schedule)]] == list(group.schedule)
    for run in simulation.runs:
        assert run.end - run.start == given_times.of(run.stage)
        for edge in plan.inputs(run.stage):
            assert at[edge.producer, run.step].end <= run.start
    updates = {step: run.end for (stage, step), run in at.items() if stage == "update"}
    for (stage, step), run in at.items():
        needed = step - 1 - staleness
        if stage == "rollout" and needed >= 1:
            assert run.start >= updates[needed] + given_times.weight_sync
        for edge in plan.outputs(stage):
            taken = step - staleness - 2
            assert taken < 1 or at[edge.consumer, taken].start <= run.end, "rows of more steps than buffers allow"


@settings(max_examples=60)
@given(st.sampled_from(sorted(PLANS)), st.integers(0, 3), all_times)
def test_a_step_takes_as_long_as_its_busiest_group_or_longer(name, staleness, given_times):
    plan = with_staleness(PLANS[name], staleness)
    result = timeline_of(plan, given_times)
    busiest = max(busy_seconds(plan, given_times, group) for group in plan.groups)
    assert busiest <= result.seconds_per_step <= result.synchronous_seconds
    assert all(0 <= share <= 1 for share in result.idle.values())
    if busiest == result.seconds_per_step > 0:
        assert min(result.idle.values()) == 0


@settings(max_examples=40)
@given(all_times)
def test_two_groups_without_staleness_generate_and_train_in_turn(given_times):
    # of the training group the reference can run while rewards are computed
    of = given_times.of
    after_rollout = max(of("reward"), of("reference")) + of("advantage") + of("update")
    in_turn = of("rollout") + after_rollout + given_times.weight_sync
    assert timeline_of(APART, given_times).seconds_per_step == in_turn


@settings(max_examples=30)
@given(st.sampled_from(sorted(PLANS)), st.integers(0, 3), all_times)
def test_a_steady_state_goes_on_for_good(name, staleness, given_times):
    simulation = Simulation(with_staleness(PLANS[name], staleness), given_times)
    _, period = run_until_it_repeats(simulation)
    last = simulation.ends[-1]
    result = simulation.ends[-1 - period]
    for _ in range(period):
        simulation.run_step()
    for group, end in simulation.ends[-1].items():
        assert end - last[group] == last[group] - result[group]


@pytest.mark.parametrize(("plan", "group", "trainers"), [
    (APART, "rollout", ("train",)), (APART, "train", ()), (THREE, "scores", ()), (make_plan(), "train", ("train",)),
])  # fmt: skip
def test_who_trains_what_a_group_generates_with(plan, group, trainers):
    assert trainers_of(plan, group) == trainers
