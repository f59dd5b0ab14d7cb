"""Names of metrics in jobs with several policies."""

from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_worker.metrics.by_policy import by_policy, label_and_name, labelled

POLICIES = st.from_regex(r"[a-z][a-z0-9_]{0,31}", fullmatch=True)
NAMES = st.from_regex(r"[a-z]+(/[a-z@0-9]+){1,3}", fullmatch=True).filter(lambda name: not name.startswith("time/"))


def test_a_policy_stands_before_its_metrics_and_times_add_up():
    metrics = {"reward/mean": 0.5, "critic/update/loss": 2.0, "time/forward_seconds": 1.0}
    assert labelled(metrics, None) == metrics
    assert labelled(metrics, "solver") == {
        "policy/solver/reward/mean": 0.5,
        "policy/solver/critic/update/loss": 2.0,
        "time/forward_seconds": 1.0,
    }


def test_metrics_of_a_job_with_one_policy_have_no_label():
    for name in ("reward/mean", "policy/entropy", "policy/strange/figure", "time/policy/a/b"):
        assert label_and_name(name) == (None, name)


@settings(max_examples=30)
@given(
    st.dictionaries(POLICIES, st.dictionaries(NAMES, st.integers(), max_size=3), min_size=1, max_size=3), st.integers()
)
def test_what_was_put_together_is_taken_apart(of_policies, seconds):
    metrics = {"time/step_seconds": seconds}
    for policy, own in of_policies.items():
        metrics |= labelled(own, policy)
    parts = by_policy(metrics)
    assert parts.pop(None) == {"time/step_seconds": seconds}
    assert parts == {policy: own for policy, own in of_policies.items() if own}
