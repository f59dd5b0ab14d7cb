"""Tests of the generated page of conditions."""

from pathlib import Path

from rljob_api.v1alpha1.status import Phase
from rljob_operator.reporting.conditions_reference import PHASES, conditions_text, reasons_of
from rljob_operator.states.situation.conditions import TYPES, Reason

PAGE = Path(__file__).parents[4] / "docs/conditions.md"


def test_the_committed_page_is_what_the_reasons_make():
    assert PAGE.read_text() == conditions_text(), "run `make docs`"


def test_every_reason_is_listed_under_one_condition_and_has_a_meaning():
    listed = [reason for type_ in TYPES if type_ != "Complete" for reason in reasons_of(type_)]
    assert listed == list(Reason)
    assert all(reason.meaning.endswith(".") for reason in Reason)
    assert reasons_of("Accepted")[0] is Reason.VALID
    suspended = [Reason.NOT_SUSPENDED, Reason.SUSPENDING, Reason.STEPS_RAISED, Reason.SUSPENDED]
    assert reasons_of("Suspended") == suspended


def test_every_phase_is_documented():
    assert set(PHASES) == set(Phase.__args__)
