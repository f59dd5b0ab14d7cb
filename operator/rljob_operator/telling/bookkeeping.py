"""What the operator's metrics hear of a job, from how its status changed."""

from __future__ import annotations

from rljob_api.v1alpha1.status import RLJobStatus
from rljob_operator.states.situation.conditions import is_true
from rljob_operator.telling.job_metrics import JobFacts, JobMetrics
from rljob_operator.vocabulary.key import Key
from rljob_operator.vocabulary.timestamps import seconds_of, seconds_since


def facts_of(status: RLJobStatus) -> JobFacts:
    """What there is to say of the job now."""
    progress = status.progress
    return JobFacts(
        phase=status.phase,
        conditions={each.type: each.status for each in status.conditions},
        step=progress.step if progress else None,
        total_steps=progress.total_steps if progress else None,
        progress_timestamp_seconds=(
            seconds_of(progress.last_step_time) if progress and progress.last_step_time else None
        ),
        restarts=status.restarts,
        counted_restarts=status.counted_restarts,
        ended_timestamp_seconds=seconds_of(status.completion_time) if status.completion_time else None,
    )


def tell(metrics: JobMetrics, key: Key, before: RLJobStatus, after: RLJobStatus, created: str, now: float) -> None:
    """Show what the job is like, and count what happened between two writes of its status."""
    metrics.show(key, facts_of(after))
    if after.last_failure is not None and _is_given_up(before, after):
        metrics.failed(after.last_failure.cause)
    if after.pods_created_time and not before.pods_created_time and after.attempt == 1:
        metrics.queued(seconds_since(created, now))
    if is_true(after.conditions, "Scheduled") and not is_true(before.conditions, "Scheduled"):
        metrics.scheduled(_attempt_seconds(after, now))
    if after.ready_time and not before.ready_time:
        metrics.ready(_attempt_seconds(after, now))
    if after.completion_time and not before.completion_time:
        metrics.finished(after.phase, seconds_since(after.start_time, now))


def _is_given_up(before: RLJobStatus, after: RLJobStatus) -> bool:
    """Whether the attempt whose failure is noted has just ended by it; until then a worse cause may come to light."""
    ended_the_job = after.phase == "Failed" and before.phase != "Failed"
    is_of_this_attempt = after.last_failure is not None and after.last_failure.attempt == after.attempt
    return after.restarts > before.restarts or (ended_the_job and is_of_this_attempt)


def _attempt_seconds(status: RLJobStatus, now: float) -> float:
    return seconds_since(status.pods_created_time, now)
