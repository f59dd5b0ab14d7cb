"""Tests of accepting a spec, its changes and the plan in its status."""

from __future__ import annotations

import hashlib

from rljob_api.tests.builders import make_job, make_plan
from rljob_operator.acting.children import covers
from rljob_operator.inspection.acceptance import Accepted, in_force, plan_from_config_map
from rljob_operator.inspection.job_store import read_status
from rljob_operator.manifests.context import WrittenPlan


def test_only_fields_that_may_change_follow_the_spec() -> None:
    old, new = make_job().spec, make_job("suspend=true", "failurePolicy={maxRestarts: 7}", "stop={steps: 99}").spec
    result = in_force(old, new)
    assert (result.suspend, result.failure_policy.max_restarts, result.stop.steps) == (True, 7, 99)
    assert in_force(new, old).stop.steps == 99


def test_plan_is_read_back_as_it_was_written() -> None:
    written = WrittenPlan.of(make_plan())
    assert plan_from_config_map({"data": {"plan.json": written.text}}) == written
    assert written.hash == make_plan().hash()
    assert (
        plan_from_config_map({"data": {"plan.json": "{}"}}) is None
        and plan_from_config_map({"data": {"plan.json": "{"}}) is None
    )
    assert plan_from_config_map({"data": {}}) is None and plan_from_config_map(None) is None
    assert Accepted(make_job(), written).changes == ""


def test_plan_of_another_version_is_what_this_one_knows_of_it_and_keeps_its_name() -> None:
    text = make_plan().canonical_json().replace('"job":', '"somethingNew":1,"job":', 1)
    result = plan_from_config_map({"data": {"plan.json": text}})
    assert result is not None and result.plan == make_plan()
    assert result.hash == hashlib.sha256(text.encode()).hexdigest() != make_plan().hash()


def test_status_keeps_what_can_be_kept() -> None:
    status = read_status({"attempt": 3, "phase": "Sleeping", "colour": "red", "restarts": "many"})
    assert (status.attempt, status.phase, status.restarts) == (3, "Pending", 0)


def test_covers_what_is_wanted_and_minds_nothing_else() -> None:
    wanted = {"spec": {"ports": [{"port": 1}], "on": True}}
    assert covers({"spec": {"ports": [{"port": 1, "added": 2}], "on": True, "more": 0}}, wanted)
    assert not covers({"spec": {"ports": [{"port": 1}], "on": False}}, wanted)
    assert not covers({"spec": {"ports": [{"port": 1}, {"port": 2}], "on": True}}, wanted)
    assert not covers({}, wanted)
