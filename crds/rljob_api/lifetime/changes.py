"""Which fields of a job may change: of one that was made, and between a run and its resumption.  Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rljob_api.checks.subject import problem
from rljob_api.pipeline.resolution import with_precision
from rljob_api.v1alpha1 import RLJobSpec
from rljob_api.vocabulary.problem import Problem

MUTABLE = ("suspend", "lifecycle", "failurePolicy.maxRestarts", "generators")
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
    return [problem(f"spec.{path}", result, IMMUTABLE, "Make a new job.") for path, result in changed]


def raises_steps(old: RLJobSpec, new: RLJobSpec) -> bool:
    """Whether `new` has more steps, and those of `old` keep the learning rates that were planned."""
    training, steps = old.training, new.stop.steps
    return steps > old.stop.steps and (training.schedule == "Constant" or steps <= (training.schedule_steps or 0))


def _changed(old: Any, new: Any, path: str, allowed: tuple[str, ...]) -> list[tuple[str, Any]]:
    """(path, new value) of what differs; fields beside those that may change one by one, others whole."""
    if path in allowed or old == new:
        return []
    if not path or any(item.startswith(f"{path}.") for item in LISTED):
        below = ((f"{path}.{name}" if path else name, name) for name in new)
        return [result for place, name in below for result in _changed(old.get(name), new[name], place, allowed)]
    return [(path, new)]


_ORDINALS = "prompts are counted in the order of the data, so the run could not go on where it stopped"
_ROWS = "rows are numbered by it, so row numbers and random numbers would not go on"
_PROMPTS = "it decides which prompts there are and how long they are, so the count of prompts would not go on"

_REFUSED = {
    "models": "the checkpoint holds the weights of the models that the run began with",
    "seed": "random numbers would not go on where they stopped",
    "data.train": _ORDINALS,
    "data.shuffle": _ORDINALS,
    "data.batchSize": _ORDINALS,
    "data.promptColumn": _PROMPTS,
    "data.maxPromptTokens": _PROMPTS,
    "data.applyChatTemplate": _PROMPTS,
    "data.systemPrompt": _PROMPTS,
    "algorithm.name": "the checkpoint holds the state of another algorithm",
    "algorithm.advantage.estimator": "one estimator has a critic in the checkpoint and another has none",
    "algorithm.groupSize": _ROWS,
    "algorithm.sampling.dynamic": "it decides how many prompts a step draws, so the count of prompts would not go on",
    "rollout.conversation.maxRows": _ROWS,
    "rollout.simulator.maxSteps": _ROWS,
    "rollout.simulator.actionChunk": _ROWS,
    "training.engine": "the checkpoint was written by another engine",
    "training.precision": "the checkpoint holds weights and optimizer state of another precision",
    "training.optimizer.name": "the checkpoint holds the states of another optimizer",
    "training.optimizer.states": "the checkpoint holds them in another number format",
    "checkpoint.initFrom": "a run that resumes starts from its own checkpoint, so the field would be ignored",
}
"""Fields, with everything below them, that must stay; everything else may change."""

_STAYS_OR_STAYS_OUT = {
    "rollout.partial": "with it responses and groups wait for later steps, which a run without it would never train on",
    "rollout.conversation": "a trajectory has as many row numbers as a conversation may have rows, and rows that wait "
    "between steps have other columns",
    "rollout.simulator": "a trajectory has as many row numbers as an episode may have decisions",
}
"""Fields that are in both or in neither; what is below them may change."""

_LENGTHS = ("rollout.maxResponseTokens", "rollout.maxSequenceTokens")
_LONGER = "with rollout.partial responses wait for later steps, which may be longer than what it allows then"
"""Why `_LENGTHS` stay where responses are carried on."""


@dataclass(frozen=True)
class Change:
    """A field that differs between a run and its resumption."""

    path: str
    """In the spec: `training.learningRate`."""
    old: Any
    new: Any
    refused: str | None
    """Why it must not change; None when it may."""

    @property
    def allowed(self) -> bool:
        """Whether the run may go on with the new value."""
        return self.refused is None


def resume_changes(old: RLJobSpec, new: RLJobSpec) -> list[Change]:
    """Every field that differs, in the order of the spec."""
    differences = _differences(with_precision(old).to_json(), with_precision(new).to_json(), "")
    carries = new.rollout.partial is not None
    return [
        Change(path, before, after, _LONGER if carries and path in _LENGTHS else _refusal(path))
        for path, before, after in differences
    ]


def _refusal(path: str) -> str | None:
    if path in _STAYS_OR_STAYS_OUT:
        return _STAYS_OR_STAYS_OUT[path]
    for prefix, reason in _REFUSED.items():
        if path == prefix or path.startswith((f"{prefix}.", f"{prefix}[")):
            return reason
    return None


def _differences(old: Any, new: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """Leaves that differ; a list whose length changed is one difference."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys((*old, *new)):
            yield from _differences(old.get(key), new.get(key), f"{path}.{key}" if path else key)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for i, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from _differences(before, after, f"{path}[{i}]")
    elif old != new:
        yield path, old, new
