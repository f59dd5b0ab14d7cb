"""How far training is: from what the lead pod answers to `status.progress`."""

from __future__ import annotations

from rljob_api.v1alpha1.status import MAX_PROGRESS_METRICS, MetricStatus, ProgressStatus
from rljob_operator.states.situation.facts import ProgressAnswer
from rljob_operator.states.situation.situation import Situation

_MAX_SECONDS = 1e12
"""Seconds of an estimate, at most: the API holds 64 bits."""


def with_progress(situation: Situation) -> Situation:
    """The situation with its progress brought up to date."""
    answer = situation.progress
    if isinstance(answer, ProgressAnswer) and answer.attempt == situation.status.attempt:
        situation = situation.with_status(progress=_progress(situation, answer))
    return _with_last_words(situation)


def _progress(situation: Situation, answer: ProgressAnswer) -> ProgressStatus:
    before, total = situation.status.progress, answer.total_steps or situation.spec.stop.steps
    is_news = before is None or before.step != answer.step
    return ProgressStatus(
        step=answer.step,
        total_steps=total,
        percent=_percent(answer.step, total),
        estimated_remaining_seconds=_remaining_seconds(answer, total),
        reward=None if answer.reward is None else _text(answer.reward),
        metrics=tuple(
            MetricStatus(name=name, value=_text(value))
            for name, value in list(answer.metrics.items())[:MAX_PROGRESS_METRICS]
        ),
        checkpoint_step=answer.checkpoint_step,
        last_step_time=situation.timestamp if is_news or before is None else before.last_step_time,
    )


def _with_last_words(situation: Situation) -> Situation:
    """Pods that are done say in their last words which step they reached; nobody asks them any more."""
    progress, ends = situation.status.progress, [pod.ended for pod in situation.current if pod.ended is not None]
    steps = [end.step for end in ends if end.step is not None and end.exit_code == 0]
    known = progress or ProgressStatus(total_steps=situation.spec.stop.steps)
    if not steps or max(steps) <= known.step:
        return situation
    checkpoints = [end.checkpoint for end in ends if end.checkpoint is not None]
    changes = {
        "step": max(steps),
        "percent": _percent(max(steps), known.total_steps),
        "estimated_remaining_seconds": 0,
        "checkpoint_step": max(checkpoints, default=known.checkpoint_step),
        "last_step_time": situation.timestamp,
    }
    return situation.with_status(progress=known.model_copy(update=changes))


def _percent(step: int, total: int) -> int:
    return min(100, 100 * step // total) if total else 0


def _remaining_seconds(answer: ProgressAnswer, total: int) -> int | None:
    if answer.step_seconds is None:
        return None
    return max(0, round(min((total - answer.step) * answer.step_seconds, _MAX_SECONDS)))


def _text(value: float) -> str:
    return f"{value:.4g}"
