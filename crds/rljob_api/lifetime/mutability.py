"""Which fields of a job may change after it was made.  The CRD's rule and the operator's words both come from here."""

from __future__ import annotations

from typing import Any

from rljob_api.checks.subject import problem
from rljob_api.v1alpha1 import RLJobSpec
from rljob_api.vocabulary.problem import Problem

MUTABLE = ("suspend", "lifecycle", "failurePolicy.maxRestarts")
"""Fields of the spec that may change at any time."""

MUTABLE_WHILE_SUSPENDED = ("scheduling.priorityClassName",)
"""Fields that may change besides while the job is suspended: the pods that have the old value are gone."""

RAISABLE = ("stop.steps",)
"""Fields that may become larger where the learning rate does not depend on them."""

LISTED = MUTABLE + MUTABLE_WHILE_SUSPENDED + RAISABLE

IMMUTABLE = (
    f"this field of a job does not change; {', '.join(MUTABLE)} do, {', '.join(MUTABLE_WHILE_SUSPENDED)} "
    f"while the job is suspended, and {', '.join(RAISABLE)} may be raised: without a bound where training.schedule is "
    "Constant, else up to training.scheduleSteps"
)

ENDED = "the job has ended, and does not go on; a new job begins with its weights by checkpoint.initFrom"
"""Why the steps of a job are not raised any more."""


def immutable_changes(old: RLJobSpec, new: RLJobSpec) -> list[Problem]:
    """A problem for every field that `new` has otherwise than `old` and that may not change."""
    allowed = MUTABLE + (MUTABLE_WHILE_SUSPENDED if old.suspend else ()) + (RAISABLE if raises_steps(old, new) else ())
    changed = _changed(old.to_json(), new.to_json(), "", allowed)
    return [problem(f"spec.{path}", found, IMMUTABLE, "Make a new job.") for path, found in changed]


def raises_steps(old: RLJobSpec, new: RLJobSpec) -> bool:
    """Whether `new` has more steps, and those of `old` keep the learning rates that were planned."""
    training, steps = old.training, new.stop.steps
    return steps > old.stop.steps and (training.schedule == "Constant" or steps <= (training.schedule_steps or 0))


def _changed(old: Any, new: Any, path: str, allowed: tuple[str, ...]) -> list[tuple[str, Any]]:
    """(path, new value) of what differs; fields beside those that may change one by one, others whole."""
    if path in allowed or old == new:
        return []
    if not path or any(each.startswith(f"{path}.") for each in LISTED):
        below = ((f"{path}.{name}" if path else name, name) for name in new)
        return [found for place, name in below for found in _changed(old.get(name), new[name], place, allowed)]
    return [(path, new)]
