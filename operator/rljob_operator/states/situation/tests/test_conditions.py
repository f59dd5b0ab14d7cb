"""How conditions change, and when their times move."""

from __future__ import annotations

from typing import Any

import pytest

from rljob_api.v1alpha1.status import Condition
from rljob_operator.states.situation.conditions import (
    TYPES,
    Claim,
    Reason,
    clipped,
    condition,
    is_true,
    known_reason,
    merged_conditions,
    no,
    unknown,
    yes,
)
from rljob_operator.states.tests.builders import NOW, ago


def known(type_: Any, status: Any, **more: Any) -> Condition:
    """Said 60 s ago, of the second generation of the spec."""
    said = {"reason": "NoPods", "message": "before", "last_transition_time": ago(60), "observed_generation": 2}
    return Condition(type=type_, status=status, **{**said, **more})


READY = known("Ready", "False")
PENDING = known("Complete", "False")


def test_what_is_claimed() -> None:
    for claim, status in ((yes, "True"), (no, "False"), (unknown, "Unknown")):
        assert claim(Reason.NO_PODS, "words") == Claim(status, Reason.NO_PODS, "words")
        assert claim(Reason.NO_PODS) == Claim(status, Reason.NO_PODS) and claim(Reason.NO_PODS).message == ""


def test_a_time_stays_while_a_status_does() -> None:
    (result,) = merged_conditions([READY], {"Ready": no(Reason.PODS_STARTING, "now")}, NOW, 3)
    assert result == known("Ready", "False", reason="PodsStarting", message="now", observed_generation=3)


@pytest.mark.parametrize("before", [[READY], [], [known("Progressing", "True")]])
def test_a_time_moves_with_a_status(before: list[Condition]) -> None:
    result = condition(merged_conditions(before, {"Ready": yes(Reason.ALL_PODS_READY)}, NOW, 3), "Ready")
    assert result == Condition(
        type="Ready", status="True", reason="AllPodsReady", last_transition_time=ago(0), observed_generation=3
    )


def test_what_nothing_is_claimed_of_stays_as_it_is() -> None:
    assert merged_conditions([PENDING, READY], {}, NOW, 3) == (READY, PENDING)
    result = merged_conditions([READY, PENDING], {"Complete": yes(Reason.ALL_PODS_DONE)}, NOW, 3)
    assert [item.status for item in result] == ["False", "True"] and result[0] == READY


def test_conditions_stand_in_one_order() -> None:
    claims = {type_: no(Reason.NOT_FINISHED) for type_ in reversed(TYPES)}
    assert tuple(merged_condition.type for merged_condition in merged_conditions([], claims, NOW, 1)) == TYPES


@pytest.mark.parametrize(("status", "holds"), [("True", True), ("False", False), ("Unknown", False)])
def test_only_what_is_true_holds(status: Any, holds: bool) -> None:
    conditions = (READY, known("Complete", status))
    assert is_true(conditions, "Complete") is holds
    assert not is_true(conditions, "Failed")


def test_a_condition_is_found_by_its_type() -> None:
    assert condition((READY, PENDING), "Complete") is PENDING
    assert condition((READY, PENDING), "Failed") is None


def test_a_message_is_cut_where_the_api_takes_no_more() -> None:
    # 4096 characters, of which the last two say that there was more
    assert clipped("x" * 4096) == "x" * 4096
    assert clipped("x" * 4097) == "x" * 4094 + " …"
    (result,) = merged_conditions([], {"Ready": no(Reason.NO_PODS, "x" * 5000)}, NOW, 1)
    assert result.message == "x" * 4094 + " …"


def test_a_word_of_another_version_is_what_is_said_instead() -> None:
    assert known_reason("NoPods", Reason.POD_FAILED) is Reason.NO_PODS
    assert known_reason("Melted", Reason.POD_FAILED) is Reason.POD_FAILED
