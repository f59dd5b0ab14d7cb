import pytest

from rljob_api.v1alpha1 import CheckpointSpec, StopSpec
from rljob_worker.runtime.control import Report, Verdict, decide, report_from_json, report_to_json
from rljob_worker.scalars import maximum, mean, total


def verdict(step, **changes):
    options = {
        "stop": StopSpec(steps=10),
        "checkpoint": CheckpointSpec(every_steps=4),
        "was_announced_last": False,
        "stop_requested": False,
        "reward": 0.5,
        "elapsed_seconds": 60.0,
    }
    return decide(step, **{**options, **changes})


@pytest.mark.parametrize("step, checkpoint", [(0, False), (1, False), (4, True), (6, False), (8, True)])
def test_checkpoints_come_every_k_steps(step, checkpoint):
    assert verdict(step) == Verdict(checkpoint=checkpoint)


def test_the_last_step_checkpoints_and_ends():
    assert verdict(10) == Verdict(checkpoint=True, last=True, cause="reached step 10")


def test_a_stop_request_checkpoints_at_once_but_never_before_the_first_step():
    assert verdict(3, stop_requested=True) == Verdict(True, last=True, stopped=True, cause="asked to stop")
    assert verdict(0, stop_requested=True).checkpoint is False


def test_a_stop_condition_announces_one_more_step():
    stop = StopSpec(steps=10, reward_above=0.4)
    first = verdict(3, stop=stop)
    assert first.next_is_last and not first.last and "reward 0.5 is above 0.4" in first.cause
    assert verdict(4, stop=stop, was_announced_last=True).last


def test_a_stop_request_on_the_last_step_is_a_finished_job():
    assert not verdict(10, stop_requested=True).stopped


def test_active_seconds_end_the_job():
    assert verdict(3, stop=StopSpec(steps=10, active_seconds=59)).next_is_last


def test_a_report_survives_the_wire_exactly():
    report = Report({"a": mean(0.1 + 0.2, 3), "b": total(7), "c": maximum(-1.5)}, [{"x": "ä"}], True)
    assert report_from_json(report_to_json(report)) == report
