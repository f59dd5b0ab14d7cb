"""Tests of how a job's phase and reason are shown."""

import pytest

from rljob.following import final_line, status_lines
from rljob.tests.builders import condition, job

RUNNING = {"phase": "Running", "attempt": 1, "ready": "2/2"}
AT_THREE = {
    "step": 3,
    "totalSteps": 40,
    "reward": "0.3125",
    "metrics": [{"name": "kl/reference", "value": "0.0012"}, {"name": "other/thing", "value": "7"}],
}


def test_a_job_that_nobody_has_looked_at_is_pending():
    fresh = job()
    assert (fresh.phase, fresh.step, fresh.total_steps, fresh.reward) == ("Pending", 0, 40, None)
    assert (fresh.reason, fresh.message, fresh.has_ended) == ("", "", False)


def test_what_another_operator_writes_beside_it_is_left_alone():
    seen = job(**RUNNING, progress=AT_THREE, whatComesNext={"x": 1})
    assert (seen.step, seen.total_steps, seen.reward, seen.metrics["kl/reference"]) == (3, 40, 0.3125, 0.0012)


@pytest.mark.parametrize(
    ("conditions", "reason"),
    [
        (
            [condition("Accepted", "False", "BeyondCeilings"), condition("Scheduled", "False", "NotStarted")],
            "BeyondCeilings",
        ),
        ([condition("Accepted", "True", "Valid"), condition("QuotaReserved", "False", "QuotaPending")], "QuotaPending"),
        ([condition("QuotaReserved", "False", "NoQueue"), condition("Scheduled", "False", "CreatingPods")], ""),
        (
            [condition("Degraded", "True", "PodFailed"), condition("Failed", "True", "TooManyRestarts")],
            "TooManyRestarts",
        ),
        ([condition("Degraded", "False", "AsExpected")], ""),
        ([condition("Degraded", "True", "ClusterFails")], "ClusterFails"),
        ([condition("Scheduled", "False", "WaitingForNodes")], "WaitingForNodes"),
    ],
)
def test_the_most_important_reason_is_the_one_that_is_shown(conditions, reason):
    assert job(phase="Pending", conditions=conditions).reason == reason


@pytest.mark.parametrize("phase", ["Succeeded", "Suspending", "Suspended"])
def test_what_was_wrong_before_is_nothing_to_a_job_that_is_done_or_rests(phase):
    rests = job(phase=phase, conditions=[condition("Degraded", "True", "PodFailed", "once")])
    assert (rests.reason, rests.message) == ("", "")


@pytest.mark.parametrize(
    ("status", "code"),
    [
        ({"phase": "Succeeded"}, 0),
        ({"phase": "Failed", "lastFailure": {"exitCode": 65}}, 65),
        ({"phase": "Failed"}, 64),
        ({"phase": "Suspended"}, 76),
    ],
)
def test_a_command_that_waited_ends_as_the_job_did(status, code):
    assert job(**status).exit_code == code


def test_news_are_what_changed():
    first, later = job(phase="Pending"), job(**RUNNING)
    assert list(status_lines(None, first)) == ["small: pending, 0/0 pods ready"]
    assert list(status_lines(first, first)) == []
    assert list(status_lines(first, later)) == ["small: running, attempt 1, 2/2 pods ready"]
    assert list(status_lines(later, job(**RUNNING, progress=AT_THREE))) == ["step 3/40  reward 0.312  kl 0.0012"]
    waits = job(phase="Pending", conditions=[condition("QuotaReserved", "False", "QuotaPending", "full")])
    assert list(status_lines(first, waits)) == ["small: QuotaPending: full"]
    again = job(**{**RUNNING, "attempt": 2})
    assert list(status_lines(later, again)) == ["small: running, attempt 2, 2/2 pods ready"]


def test_last_words_say_why():
    failed = job(phase="Failed", conditions=[condition("Failed", "True", "PodFailed", "no memory")])
    assert final_line(failed) == "small: failed after 0 of 40 steps: PodFailed: no memory"
    assert final_line(job(phase="Succeeded", progress=AT_THREE)) == "small: succeeded after 3 of 40 steps"
