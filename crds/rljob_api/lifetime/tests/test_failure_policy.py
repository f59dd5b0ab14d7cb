"""Tests of the failure policy: the exit code of a gang, retries and their budget."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.lifetime.failure_policy import (
    JobDone,
    RestartGang,
    StopJob,
    apply_failure_policy,
    gang_exit_code,
    why_guest_ends_job,
)
from rljob_api.v1alpha1 import FailurePolicySpec, FailureRule

DEFAULT = FailurePolicySpec()
SIGKILL, SIGSEGV_IN_A_CONTAINER = -9, 128 + 11


@pytest.mark.parametrize(
    ("codes", "code"),
    [
        ([0, 0], 0),
        ([], 0),
        ([0, 75], 75),
        ([75, 65, 75], 65),  # one pod's bad data must not hide behind its peers' lost peer
        ([75, 76], 76),
        ([76, 70], 70),
        ([70, 65], 65),
        ([65, 64], 64),
        ([75, SIGKILL], SIGKILL),
        ([SIGKILL, 1], 1),
        ([130, SIGKILL, 75], 130),
        ([74, 130], 74),
        ([75, 134], 75),  # NCCL aborts a process whose peer is lost
        ([-6, 0, 75], 75),
        ([134, 137], 137),
        ([134, 0, 76], 134),
    ],
)
def test_one_code_speaks_for_the_gang(codes, code):
    assert gang_exit_code(codes) == code


def test_a_gang_without_failure_is_done():
    assert apply_failure_policy([0, 0], 0, DEFAULT) == JobDone()


@pytest.mark.parametrize("codes", [[75], [70], [1], [SIGKILL], [SIGSEGV_IN_A_CONTAINER], [137], [0, 75]])
def test_what_may_pass_is_retried_within_the_budget(codes):
    decision = apply_failure_policy(codes, 2, DEFAULT)
    assert isinstance(decision, RestartGang)
    assert decision.counted
    assert "restart 3 of 3" in decision.reason
    assert isinstance(apply_failure_policy(codes, 3, DEFAULT), StopJob)


@pytest.mark.parametrize("code", [64, 65, 74, 76, 130])
def test_what_cannot_pass_stops_at_once(code):
    decision = apply_failure_policy([75, code], 0, DEFAULT)
    assert isinstance(decision, StopJob)
    assert decision.code == code


def test_the_reason_says_what_happened():
    assert "killed by signal 9 (often out of memory)" in apply_failure_policy([SIGKILL], 0, DEFAULT).reason
    assert "killed by signal 11" in apply_failure_policy([SIGSEGV_IN_A_CONTAINER], 0, DEFAULT).reason
    assert "a peer was lost" in apply_failure_policy([75], 0, DEFAULT).reason
    assert apply_failure_policy([SIGKILL], 3, DEFAULT).code == 70
    assert apply_failure_policy([75], 3, DEFAULT).code == 75
    assert "all 3 restarts" in apply_failure_policy([75], 3, DEFAULT).reason


def test_a_disruption_restarts_for_free():
    decision = apply_failure_policy([75, 143], 3, DEFAULT, ["DisruptionTarget"])
    assert decision == RestartGang(decision.reason, counted=False)


def test_a_disruption_does_not_hide_bad_data():
    assert isinstance(apply_failure_policy([65], 0, DEFAULT, ["DisruptionTarget"]), StopJob)


def test_rules_of_ones_own_do_not_make_a_disruption_count_unless_they_speak_of_it():
    others = FailurePolicySpec(max_restarts=0, rules=(FailureRule(on_exit_codes=(70,), action="Stop"),))
    counted = FailurePolicySpec(rules=(FailureRule(on_pod_conditions=("DisruptionTarget",), action="Restart"),))
    assert apply_failure_policy([137], 0, others, ["DisruptionTarget"]).counted is False
    assert apply_failure_policy([137], 0, counted, ["DisruptionTarget"]).counted is True


def test_a_stop_says_what_ended_the_job():
    rule = FailurePolicySpec(rules=(FailureRule(on_exit_codes=(70,), action="Stop"),))
    assert apply_failure_policy([65], 0, DEFAULT).because == "ExitCode"
    assert apply_failure_policy([70], 0, rule).because == "Rule"
    assert apply_failure_policy([70], 3, DEFAULT).because == "Restarts"


def test_the_first_rule_that_matches_decides():
    policy = FailurePolicySpec(
        max_restarts=1,
        rules=(
            FailureRule(on_exit_codes=(70,), action="Stop"),
            FailureRule(on_exit_codes=(74, 75), on_pod_conditions=("Flaky",), action="Restart", counted=False),
            FailureRule(on_exit_codes=(74,), action="Restart"),
        ),
    )
    assert isinstance(apply_failure_policy([70], 0, policy), StopJob)
    assert apply_failure_policy([74], 0, policy, ["Flaky"]).counted is False
    assert apply_failure_policy([74], 0, policy).counted is True
    assert isinstance(apply_failure_policy([74], 1, policy), StopJob)


@given(st.lists(st.sampled_from([0, 1, 64, 65, 70, 74, 75, 76, 130, -9, -15, 134, 137]), min_size=1), st.integers(0, 5))
def test_the_decision_does_not_depend_on_the_order_or_number_of_pods(codes, restarts):
    decision = apply_failure_policy(codes, restarts, DEFAULT)
    assert decision == apply_failure_policy(sorted(codes) * 2, restarts, DEFAULT)
    assert gang_exit_code(codes) in codes
    if set(codes) - {0, 75, 134}:
        assert gang_exit_code(codes) not in (0, 75)
    assert isinstance(decision, JobDone) == (set(codes) == {0})


def test_a_guest_ends_the_job_only_where_every_other_would_end_the_same_way():
    policy = FailurePolicySpec(max_restarts=0)
    ends = {code for code in (1, 64, 65, 70, 74, 75, 76, 130, 137) if why_guest_ends_job(code, policy)}
    assert ends == {64, 65}
    rules = FailurePolicySpec(rules=(FailureRule(on_exit_codes=(3,), action="Stop"),))
    assert why_guest_ends_job(3, rules).because == "Rule" and why_guest_ends_job(4, rules) is None
