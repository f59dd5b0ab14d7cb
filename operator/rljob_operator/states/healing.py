"""A status that was edited by hand, brought back to what can be."""

from __future__ import annotations

from typing import Any

from rljob_api.v1alpha1.status import ENDED_PHASES
from rljob_operator import names
from rljob_operator.states.situation.conditions import is_true
from rljob_operator.states.situation.situation import Situation


def healed(situation: Situation) -> Situation:
    """The situation with a status that fits together: final conditions decide the phase, pods the attempt."""
    status = situation.status
    if is_true(status.conditions, "Complete"):
        return situation.with_status(phase="Succeeded")
    if is_true(status.conditions, "Failed"):
        return situation.with_status(phase="Failed")
    if status.phase in ENDED_PHASES:
        situation = situation.with_status(phase="Starting" if status.attempt else "Pending")
    newest = max(situation.pods, key=lambda pod: pod.attempt, default=None)
    if newest is None or newest.attempt <= status.attempt:
        return situation
    return _adopted(situation, newest.attempt, newest.plan_hash)


def _adopted(situation: Situation, attempt: int, plan_hash: str) -> Situation:
    """An attempt is written down before its pods are made: pods of a later one mean that the status was lost."""
    changes: dict[str, Any] = {"attempt": attempt, "phase": "Starting", "pods_created_time": situation.timestamp}
    if plan_hash:
        changes |= {
            "plan_hash": plan_hash,
            "plan_config_map": names.plan_config_map_name(situation.name, plan_hash),
        }
    return situation.with_status(**changes)
