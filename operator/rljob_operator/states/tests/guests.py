"""Pods of an elastic group in one line each, beside a gang of one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rljob_api.v1alpha1.status import GeneratorStatus
from rljob_operator.states import Decision, Situation
from rljob_operator.states.situation.facts import PodFacts, Termination
from rljob_operator.states.tests.builders import alive, pod

ELASTIC = (
    "workerGroups=[{name: train}, {name: rollout, elastic: {min: 1, max: 4}}]",
    "rollout.maxStaleness=1",
    "generators=2",
)


def guest(index: int = 0, start: int = 1, attempt: int = 1, **facts: Any) -> PodFacts:
    """A pod of the elastic group, which is ready."""
    name = f"small-rollout-{index}-a{attempt}-g{start}"
    known = {"node": f"spot{index}", "is_ready": True, **facts}
    if "ends_at" in facts:
        known = {"grace_seconds": 30, **known}
    return PodFacts(name, f"uid-{name}", "rollout", attempt, guest=index, start=start, **known)


def lost(code: int = 137, index: int = 0, start: int = 1, message: str = "killed", **facts: Any) -> PodFacts:
    """One whose worker has ended."""
    ended = Termination("worker", code, "Error", message)
    return guest(index, start, is_ready=False, is_over=True, ended=ended, **facts)


def generating(
    *guests: PodFacts,
    gang: tuple[PodFacts, ...] = (pod(0),),
    overrides: tuple[str, ...] = (),
    **status: Any,
) -> Situation:
    """A gang that trains beside its guests."""
    return replace(alive(*gang, overrides=(*ELASTIC, *overrides), **status), guest_pods=guests)


def known(index: int = 0, **changes: Any) -> GeneratorStatus:
    """What is remembered of one whose pod has been ready."""
    return GeneratorStatus(index=index, **{"ready": True, **changes})


def starts(decision: Decision) -> list[tuple[int, int]]:
    """(index, start) of the guests that are made."""
    return [(item.index, item.start) for item in decision.starts_guests]


def deleted(decision: Decision) -> dict[str, int]:
    """Name and grace of what is deleted."""
    return {item.name: item.grace_seconds for item in decision.deletions}
