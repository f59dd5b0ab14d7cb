"""Which answers are asked for again, and when."""

import json

import pytest

from rljob_operator.cluster.retry_policy import ApiResponse, RetryPolicy
from rljob_operator.vocabulary.backoff import Backoff

POLICY = RetryPolicy(attempts=4, backoff=Backoff(0.2, 10.0))


@pytest.mark.parametrize("status", [200, 201, 400, 401, 403, 404, 409, 410, 422])
def test_these_are_final(status: int) -> None:
    assert POLICY.pause_seconds(ApiResponse(status), 1, chance=0.0) is None


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504, None])
def test_these_pass(status: int | None) -> None:
    assert POLICY.pause_seconds(ApiResponse(status), 1, chance=0.0) == 0.2
    assert POLICY.pause_seconds(ApiResponse(status), 2, chance=0.0) == 0.4
    assert POLICY.pause_seconds(ApiResponse(status), 3, chance=0.5) == pytest.approx(0.6)  # 0.8 less a quarter
    assert POLICY.pause_seconds(ApiResponse(status), 4, chance=0.0) is None, "the fourth attempt was the last"


def test_the_server_may_ask_for_a_longer_pause_but_not_for_hours() -> None:
    assert POLICY.pause_seconds(ApiResponse(429, retry_after="7"), 1, chance=0.0) == 7
    assert POLICY.pause_seconds(ApiResponse(429, retry_after="0"), 1, chance=0.0) == 0.2
    assert POLICY.pause_seconds(ApiResponse(503, retry_after="86400"), 1, chance=0.0) == 60
    assert POLICY.pause_seconds(ApiResponse(503, retry_after="Sat, 21 Nov 2026 12:00:00 GMT"), 1, chance=0.0) == 0.2


def test_a_quota_charged_by_others_at_the_same_time_passes_and_a_taken_name_does_not() -> None:
    quota = 'Operation cannot be fulfilled on resourcequotas "team-a": the object has been modified'
    assert POLICY.pause_seconds(ApiResponse(409, json.dumps({"message": quota}).encode()), 1, chance=0.0) == 0.2
    taken = json.dumps({"reason": "AlreadyExists", "message": 'pods "a" already exists'}).encode()
    assert POLICY.pause_seconds(ApiResponse(409, taken), 1, chance=0.0) is None


def test_pauses_double_up_to_the_longest_for_ever() -> None:
    backoff = Backoff(first_seconds=1, last_seconds=30)
    assert [backoff.seconds(count, 0.0) for count in (1, 2, 3, 5, 6, 10_000)] == [1, 2, 4, 16, 30, 30]
    assert backoff.seconds(6, 0.999) == pytest.approx(15, abs=0.1)
