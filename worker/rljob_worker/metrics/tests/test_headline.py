"""The few figures that a step is shown by."""

from math import inf, nan

from rljob_worker.metrics.headline import MAX_METRICS, headline


def test_reward_comes_first_and_what_is_not_finite_not_at_all():
    metrics = {"time/step_seconds": 2.0, "reward/mean": 0.5, "loss/policy": nan, "kl/old": inf, "data/bytes_x": 1.0}
    assert list(headline(metrics).items()) == [("reward/mean", 0.5), ("time/step_seconds", 2.0)]


def test_parts_of_the_reward_come_last_and_not_all_of_too_many():
    metrics = {f"reward/part{number:02}": 1.0 for number in range(40)} | {"loss/policy": 1.0}
    result = list(headline(metrics))
    assert result[:2] == ["loss/policy", "reward/part00"]
    assert len(result) == MAX_METRICS == 32


def test_policies_follow_the_job_and_are_shown_alike():
    names = ["policy/b/loss/policy", "policy/a/loss/policy", "policy/a/reward/mean", "time/step_seconds", "reward/mean"]
    result = headline(dict.fromkeys([*names, "policy/a/other/figure"], 1.0))
    assert list(result) == ["reward/mean", "time/step_seconds", *names[2::-1][:1], names[1], names[0]]


def test_what_is_carried_on_stands_beside_what_is_in_flight():
    names = ["data/bytes_total", "partial/age_mean", "partial/rows_unfinished", "rollout/groups_in_flight"]
    assert list(headline(dict.fromkeys(names, 1.0))) == names[:0:-1] + names[:1]


def test_what_data_sets_reach_is_reported_too():
    metrics = {"validation/accuracy/a": 0.5, "training/reward/a": 0.25, "memory/peak": 1.0}
    assert list(headline(metrics)) == ["training/reward/a", "validation/accuracy/a"]
