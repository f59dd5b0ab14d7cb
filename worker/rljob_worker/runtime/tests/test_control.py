"""What a verdict says, which one governs a step, and what the end of a step consists of."""

import json
import os

import pytest

from rljob_api.v1alpha1 import StopSpec
from rljob_worker.metrics.report import StepReport, report_from_bytes
from rljob_worker.metrics.reporter import Reporter
from rljob_worker.metrics.scalars import mean, total
from rljob_worker.runtime.control import (
    Follower,
    Opening,
    StepEnd,
    Verdict,
    end_of,
    governing,
    is_nth,
    next_verdict,
    said,
)
from rljob_worker.runtime.tests.control_channel import FakeControlChannel
from rljob_worker.tests.documents import plan_of


def verdict(step, earlier=Verdict(), **changes):  # noqa: B008 (frozen)
    options = {
        "stop": StopSpec(steps=10),
        "delay": 1,
        "stop_requested": False,
        "reward": 0.5,
        "active_seconds": 60.0,
    }
    return next_verdict(step, earlier, **{**options, **changes})


@pytest.mark.parametrize(("step", "delay"), [(0, 1), (8, 1), (7, 2), (0, 9)])
def test_the_job_goes_on_as_long_as_nothing_ends_it(step, delay):
    assert verdict(step, delay=delay) == Verdict()


@pytest.mark.parametrize(("step", "delay"), [(9, 1), (10, 1), (8, 2), (9, 2), (4, 6)])
def test_the_last_step_is_known_as_soon_as_it_is_governed(step, delay):
    assert verdict(step, delay=delay) == Verdict(10, cause="reached step 10")


@pytest.mark.parametrize(("step", "delay", "last"), [(0, 1, 1), (3, 1, 4), (3, 3, 6)])
def test_a_stop_request_ends_the_job_with_the_step_that_is_governed(step, delay, last):
    assert verdict(step, delay=delay, stop_requested=True) == Verdict(last, stopped=True, cause="asked to stop")


def test_a_stop_request_too_late_for_a_step_before_the_last_is_a_finished_job():
    assert verdict(8, stop_requested=True).stopped
    assert verdict(9, stop_requested=True) == Verdict(10, cause="reached step 10")


def test_a_reward_above_the_limit_makes_the_governed_step_the_last():
    stop = StopSpec(steps=10, reward_above=0.4)
    assert verdict(3, stop=stop) == Verdict(4, cause="reward 0.5 is above 0.4")
    assert verdict(3, stop=stop, delay=3) == Verdict(6, cause="reward 0.5 is above 0.4")
    assert verdict(3, stop=stop, reward=0.4) == verdict(3, stop=stop, reward=None) == Verdict()
    assert verdict(3, stop=stop, reward=0.56789).cause == "reward 0.5679 is above 0.4"
    assert verdict(9, stop=stop).cause == "reached step 10"


def test_active_seconds_end_the_job():
    stop = StopSpec(steps=10, active_seconds=59)
    assert verdict(3, stop=stop) == Verdict(4, cause="active for 60 s")
    assert verdict(3, stop=stop, active_seconds=59.0) == Verdict()


def test_of_several_reasons_a_request_comes_first_and_then_the_reward():
    stop = StopSpec(steps=10, active_seconds=1, reward_above=0.1)
    assert verdict(3, stop=stop, stop_requested=True).stopped
    assert verdict(3, stop=stop).cause.startswith("reward")


def test_what_has_been_decided_stays():
    early = Verdict(5, cause="reward 0.5 is above 0.4")
    for step in (4, 5, 9, 10):
        assert verdict(step, early, stop_requested=True) == early


@pytest.mark.parametrize(
    ("step", "delay", "first", "expected"),
    [(1, 1, 0, 0), (1, 1, 1, None), (2, 1, 1, 1), (2, 3, 0, None), (3, 3, 0, 0), (9, 2, 7, 7), (8, 2, 7, None)],
)
def test_a_step_is_governed_by_the_verdict_on_one_that_this_attempt_reported(step, delay, first, expected):
    assert governing(step, delay=delay, first=first) == expected


@pytest.mark.parametrize(
    ("step", "every", "due"),
    [(0, 2, False), (1, 2, False), (2, 2, True), (4, 2, True), (1, 1, True), (3, 0, False)],
)
def test_every_nth_step(step, every, due):
    assert is_nth(step, every) is due


def spec_of(**changes):
    data = {"train": [{"path": "some/data"}], "validation": [{"path": "more/data"}], "batchSize": 4}
    every = {"validation": {"everySteps": 3}, "checkpoint": {"everySteps": 4}}
    return plan_of(**{"data": data, "stop": {"steps": 10}, **every, **changes}).spec


def end(step, verdict=Verdict(), *, keeps=True, **changes):  # noqa: B008 (frozen)
    return end_of(step, spec_of(**changes), verdict, keeps_checkpoints=keeps)


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (1, StepEnd()),
        (3, StepEnd(validates=True)),
        (4, StepEnd(saves=True)),
        (10, StepEnd(is_last=True, validates=True, saves=True)),
    ],
)
def test_without_a_word_the_number_of_a_step_says_how_it_ends(step, expected):
    assert end(step) == expected


def test_the_last_step_by_verdict_validates_and_saves():
    early = Verdict(5, cause="reward")
    assert end(5, early) == StepEnd(is_last=True, validates=True, saves=True)
    assert end(4, early) == StepEnd(saves=True)
    assert end(6, early) == StepEnd(validates=True)


def test_a_step_that_is_the_last_on_request_saves_without_a_validation_of_its_own():
    assert end(5, Verdict(5, stopped=True)) == StepEnd(is_last=True, saves=True)
    assert end(6, Verdict(6, stopped=True)) == StepEnd(is_last=True, validates=True, saves=True)
    assert end(3, Verdict(5, stopped=True)) == StepEnd(validates=True)


def test_nothing_is_saved_where_ranks_see_different_disks_and_nothing_validated_without_data():
    assert end(4, keeps=False) == StepEnd()
    assert end(10, keeps=False) == StepEnd(is_last=True, validates=True)
    no_validation = {"train": [{"path": "some/data"}], "batchSize": 4}
    assert end(10, data=no_validation, validation={}) == StepEnd(is_last=True, syncs=False, saves=True)


def test_a_follower_reports_under_its_number_and_hears_what_the_lead_says():
    channel = FakeControlChannel(1)
    lead = channel.end(0)
    follower = Follower(lead, 0, Reporter(None))
    lead.announce("opening", 0, said(Opening(4, "somewhere")))
    lead.announce("verdict", 4, said(Verdict(6, True, "asked")))
    assert follower.open() == Opening(4, "somewhere")
    assert follower.verdict(4) == Verdict(6, True, "asked")
    assert follower.active_seconds == 0.0
    report = StepReport({"x": total(1)}, [{"row": 1}])
    with follower.attend(4, 60.0):
        follower.report(5, report)
    assert report_from_bytes(lead.collect(5)) == report
    assert json.loads(said(Verdict())) == {"last_step": None, "stopped": False, "cause": ""}


def test_the_launcher_of_a_follower_is_shown_its_own_figures():
    read_end, write_end = os.pipe()
    with open(read_end) as shown, open(write_end, "w"):
        Follower(FakeControlChannel(2).end(1), 1, Reporter(write_end)).report(
            1, StepReport({"x": total(2), "y": mean(3, 2)})
        )
        assert json.loads(shown.readline()) == {"metrics": {"x": 2.0, "y": 1.5}, "progress": {}}


def test_the_number_of_a_follower_is_the_place_of_its_samples():
    channel = FakeControlChannel(3)
    for ordinal in (2, 0, 1):
        Follower(channel.end(ordinal), ordinal, Reporter(None)).report(1, StepReport(samples=[{"of": ordinal}]))
    assert report_from_bytes(channel.end(0).collect(1)).samples == [{"of": 0}, {"of": 1}, {"of": 2}]
