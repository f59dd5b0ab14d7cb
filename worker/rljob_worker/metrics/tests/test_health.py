"""What a run's metrics say of its health."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from rljob_worker.metrics.health import HealthMonitor, health_of, reward_weights

HEALTHY = {
    "reward/mean": 0.4, "reward/std": 0.5, "reward/zero_variance_groups": 0.1, "policy/entropy": 0.3,
    "update/gradient_norm": 0.6, "kl/reference": 0.01, "response/truncated_fraction": 0.0, "response_length/mean": 8.0,
    "time/reward_seconds": 0.1, "time/step_seconds": 1.0,
}  # fmt: skip


def steps(*changes: Mapping[str, float]) -> list[dict[str, float]]:
    """The validation before the first step, and a step for each mapping of what is not as in a healthy one."""
    return [
        {"step": 0, "validation/accuracy": 0.2},
        *({"step": i, **HEALTHY, **change} for i, change in enumerate(changes, 1)),
    ]


def names(records: Sequence[Mapping[str, float]], weights: Mapping[str, float] | None = None) -> list[str]:
    monitor = HealthMonitor(weights)
    return [f"{warning.name}@{warning.step}" for record in records for warning in monitor.observe(record)]


ALIKE = {"reward/zero_variance_groups": 1.0, "reward/mean": 0.0}


@pytest.mark.parametrize(
    ("faulty", "name", "said"),
    [
        (ALIKE, "GroupsAlike", "in 100% of groups all answers have the same reward (0 in the mean of 3 steps)"),
        ({"policy/entropy": 0.003}, "EntropyCollapsed", "fell from 0.3 to 0.003 nats a token"),
        ({"update/gradient_norm": 0.0}, "NoGradient", "the gradient has been 0 for 3 steps"),
        ({"kl/reference": 1.5}, "KLRunsAway", "1.5 nats a token away from its reference"),
        ({"response/truncated_fraction": 0.9}, "ResponsesCutOff", "90% of responses are cut off; raise rollout.maxRes"),
        ({"reward/exact/errors_total": 4.0}, "RewardsFail", "reward exact fails or times out in each of 3 steps"),
        ({"time/reward_seconds": 8.0, "time/step_seconds": 10.0}, "RewardsSlow", "rewards take 8 of the 10 s"),
    ],
)  # fmt: skip
def test_three_faulty_steps_are_named_with_the_evidence_and_the_field(
    faulty: Mapping[str, float], name: str, said: str
) -> None:
    assert names(steps({}, faulty, faulty)) == []
    assert names(steps({}, faulty, faulty, faulty)) == [f"{name}@4"]
    assert said in health_of(steps({}, faulty, faulty, faulty))[0]
    assert names(steps({}, faulty, faulty, {}, faulty, faulty)) == [], "three in a row"


def test_a_gradient_a_hundred_times_as_large_is_named() -> None:
    assert names(steps(*[{}] * 6, *[{"update/gradient_norm": 59.0}] * 3)) == []
    assert names(steps(*[{}] * 6, *[{"update/gradient_norm": 61.0}] * 3)) == ["GradientExploded@9"]


def test_a_reward_that_falls_is_named_and_one_that_never_rose_is_not() -> None:
    # deviation 0.5: a fall of more than 0.375 from the best mean of three steps, 0.9
    assert names(steps({}, *[{"reward/mean": 0.9}] * 3, *[{"reward/mean": 0.53}] * 3)) == []
    assert names(steps({}, *[{"reward/mean": 0.9}] * 3, *[{"reward/mean": 0.5}] * 3)) == ["RewardFalls@7"]


def test_a_fall_is_measured_by_how_much_rewards_differed_at_their_best() -> None:
    first = {"reward/mean": 0.01, "reward/std": 0.1}  # one row of a hundred succeeds: 0.075 would be a fall
    best, worse = {"reward/mean": 0.26, "reward/std": 0.44}, {"reward/mean": 0.17, "reward/std": 0.38}
    assert names(steps(first, *[best] * 3, *[worse] * 3)) == []
    # 0.75 of 0.44 is 0.33
    assert names(steps(first, *[best | {"reward/mean": 0.4}] * 3, *[worse | {"reward/mean": 0.05}] * 3)) == [
        "RewardFalls@7"
    ]


def test_what_a_run_that_has_learnt_shows_is_no_illness() -> None:
    # 0.51 is above 0.4 by a fifth of 0.5
    solved = ALIKE | {"reward/mean": 0.51, "policy/entropy": 0.001, "update/gradient_norm": 0.0}
    assert names(steps({}, *[solved] * 5)) == []
    assert names(steps({}, *[solved | {"reward/mean": 0.49}] * 3)) == [
        "GroupsAlike@4",
        "EntropyCollapsed@4",
        "NoGradient@4",
    ]


def test_groups_that_were_alike_from_the_beginning_taught_nothing_whatever_questions_came_later() -> None:
    assert names(steps(ALIKE, *[ALIKE | {"reward/mean": 0.9}] * 2)) == ["GroupsAlike@3"]


def test_longer_responses_are_an_illness_where_nothing_is_learnt_from_them() -> None:
    longer = {"response_length/mean": 25.0, "response/truncated_fraction": 0.4}
    assert names(steps({}, *[longer] * 3)) == ["ResponsesCutOff@4"]
    assert "grew to 25 tokens" in health_of(steps({}, *[longer] * 3))[0]
    assert names(steps({}, *[longer | {"reward/mean": 0.6}] * 3)) == []


def test_episodes_of_a_policy_that_does_not_succeed_yet_are_not_cut_off() -> None:
    assert names(steps(*[{"response/truncated_fraction": 0.9, "simulator/success": 0.1}] * 3)) == []


def test_one_reward_that_is_fifty_times_another_dominates() -> None:
    parts = {"reward/right": 0.5, "reward/style": 0.4}
    weights = reward_weights({"rewards": [{"name": "right"}, {"name": "style", "weight": 60}]})
    # 24 against 0.5 is below 50 times; with 100 in place of 60 it is 40 against 0.5
    assert names(steps(*[parts] * 3), weights) == []
    assert names(steps(*[parts] * 3), weights | {"style": 100.0}) == ["OneRewardDominates@3"]
    assert names(steps(*[parts | {"reward/right": 0.0}] * 3), weights) == [], "what was never given has no size yet"


def test_a_warning_is_repeated_only_after_ten_healthy_steps() -> None:
    alike = {"reward/zero_variance_groups": 1.0}
    assert names(steps({}, *[alike] * 6)) == ["GroupsAlike@4"]
    # true at 4, and again at 14: ten steps without are 4 to 14; at 15 there are eleven
    assert names(steps({}, *[alike] * 3, *[{}] * 7, *[alike] * 3)) == ["GroupsAlike@4"]
    assert names(steps({}, *[alike] * 3, *[{}] * 8, *[alike] * 3)) == ["GroupsAlike@4", "GroupsAlike@15"]


def test_each_policy_is_looked_at_by_itself() -> None:
    def team(step: int, solver: Mapping[str, float]) -> dict[str, float]:
        parts = {"solver": HEALTHY | solver, "checker": HEALTHY}
        labelled = {f"policy/{policy}/{name}": value for policy, of in parts.items() for name, value in of.items()}
        return {"step": step, **labelled}

    (line,) = health_of([team(1, {}), *(team(step, ALIKE) for step in (2, 3, 4))])
    assert line.startswith("step 4: policy solver: in 100% of groups")


def test_metrics_that_a_job_does_not_have_say_nothing() -> None:
    assert names([{"step": i, "reward/mean": 0.0} for i in range(1, 9)]) == []


def test_the_curves_of_the_quick_start_are_healthy() -> None:
    records = [json.loads(line) for line in (Path(__file__).parent / "quick_start.jsonl").read_text().splitlines()]
    assert len(records) == 40 and names(records) == []
