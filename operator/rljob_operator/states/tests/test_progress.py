"""How far training is, from what the lead pod answers and from the last words of pods that are done."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rljob_api.v1alpha1.status import MAX_PROGRESS_METRICS, MetricStatus, ProgressStatus
from rljob_operator.states import decide
from rljob_operator.states.situation.facts import PodFacts, ProgressAnswer, Termination
from rljob_operator.states.tests.builders import NOW, ago, alive, pod
from rljob_operator.vocabulary.timestamps import timestamp

BEFORE = ProgressStatus(
    step=8, total_steps=20, estimated_remaining_seconds=99, reward="0.5", checkpoint_step=6, last_step_time=ago(50)
)


def after_answer(before: ProgressStatus | None = None, **answer: Any) -> ProgressStatus:
    """What is known once the lead pod has answered."""
    asked = replace(alive(pod(0), pod(1), progress=before), progress=ProgressAnswer(**{"attempt": 1, **answer}))
    known = decide(asked).status.progress
    assert known is not None
    return known


def after_termination(*pods: PodFacts, before: ProgressStatus | None = BEFORE) -> ProgressStatus | None:
    """What is known once these pods have ended."""
    return decide(alive(*pods, progress=before)).status.progress


def done(host: int, step: int | None, checkpoint: int | None = None, code: int = 0) -> PodFacts:
    return pod(host, is_ready=False, is_over=True, ended=Termination("worker", code, "Completed", "", step, checkpoint))


def test_an_answer_is_shown() -> None:
    answer = {"step": 3, "total_steps": 12, "reward": 0.123456, "step_seconds": 3.0, "checkpoint_step": 2}
    assert after_answer(metrics={"reward/mean": 0.123456, "tokens": 1234567.0}, **answer) == ProgressStatus(
        step=3,
        total_steps=12,
        percent=25,  # 3 of 12
        estimated_remaining_seconds=27,  # 9 steps of 3 s
        reward="0.1235",
        metrics=(
            MetricStatus(name="reward/mean", value="0.1235"),
            MetricStatus(name="tokens", value="1.235e+06"),
        ),
        checkpoint_step=2,
        last_step_time=timestamp(NOW),
    )


def test_a_launcher_whose_workers_have_said_nothing_yet() -> None:
    """The number of steps is the spec's."""
    assert after_answer(step=0) == ProgressStatus(step=0, total_steps=10, percent=0, last_step_time=timestamp(NOW))


def test_more_steps_than_all_are_all() -> None:
    known = after_answer(step=11, total_steps=10, step_seconds=4.0)
    assert (known.percent, known.estimated_remaining_seconds) == (100, 0)


def test_a_job_is_not_at_a_hundred_percent_before_its_last_step() -> None:
    assert after_answer(step=199, total_steps=200).percent == 99


@pytest.mark.parametrize(
    ("step", "grew"),
    [(7, timestamp(NOW)), (8, BEFORE.last_step_time), (9, timestamp(NOW))],
    ids=["less", "same", "more"],
)
def test_when_the_step_last_changed(step: int, grew: str) -> None:
    """A step that is less was taken anew from a checkpoint."""
    assert after_answer(before=BEFORE, step=step).last_step_time == grew


def test_more_metrics_than_a_status_takes_are_left_out() -> None:
    metrics = {f"m{number}": float(number) for number in range(MAX_PROGRESS_METRICS + 1)}
    assert [metric.name for metric in after_answer(metrics=metrics).metrics] == list(metrics)[:MAX_PROGRESS_METRICS]


def test_an_answer_of_another_attempt_is_not_ours() -> None:
    assert after_answer(before=BEFORE, attempt=2, step=9) == BEFORE


def test_pods_that_are_done_say_where_they_ended() -> None:
    after = after_termination(done(0, 9, checkpoint=8), done(1, 10, checkpoint=10))
    assert after == ProgressStatus(
        step=10,
        total_steps=20,
        percent=50,
        estimated_remaining_seconds=0,
        reward="0.5",
        checkpoint_step=10,
        last_step_time=timestamp(NOW),
    )


def test_without_a_checkpoint_of_theirs_the_last_one_known_stays() -> None:
    after = after_termination(done(0, 9), done(1, 9))
    assert after is not None and (after.step, after.checkpoint_step) == (9, 6)


def test_a_job_that_ends_before_it_was_asked() -> None:
    after = after_termination(done(0, 5), done(1, 5), before=None)
    assert after is not None and (after.step, after.total_steps, after.percent) == (5, 10, 50)


@pytest.mark.parametrize(
    "pods",
    [(done(0, 8), done(1, 8)), (done(0, None), done(1, None)), (done(0, 9, code=75), pod(1)), (pod(0), pod(1))],
    ids=["no further", "no words", "a failure", "alive"],
)
def test_what_says_nothing_new_changes_nothing(pods: tuple[PodFacts, ...]) -> None:
    assert after_termination(*pods) == BEFORE


def test_of_no_known_number_of_steps_nothing_is_a_percentage() -> None:
    after = after_termination(done(0, 3), done(1, 3), before=ProgressStatus(step=1))
    assert after is not None and (after.step, after.percent) == (3, 0)
