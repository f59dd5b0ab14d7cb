"""What is said of the pods of an elastic group."""

from __future__ import annotations

from collections.abc import Sequence

from rljob_api.v1alpha1.status import GeneratorStatus
from rljob_operator.states.situation.conditions import Claim, Reason, no, yes
from rljob_operator.states.situation.facts import PodFacts
from rljob_operator.states.situation.situation import Decision, Situation
from rljob_operator.vocabulary.timestamps import seconds_of, timestamp

_MOST_NAMED = 5


def claim(situation: Situation, decision: Decision, *, are_wanted: bool, pods: Sequence[PodFacts]) -> Claim:
    """What GeneratorsReady is. pods: those of the current attempt."""
    status = decision.status
    if not are_wanted:
        return no(Reason.GENERATORS_STOPPED)
    count = f"{status.generators} of {status.generators_wanted} generators are ready"
    if status.generators >= status.generators_wanted:
        return yes(Reason.ALL_GENERATORS_READY, count)
    why = _why(situation, decision, pods)
    if status.generators_absent_time is not None:
        limit = situation.spec.rollout.generators_deadline_seconds
        until = timestamp(seconds_of(status.generators_absent_time) + limit)
        message = f"no generator is ready since {status.generators_absent_time}: training waits until {until}, "
        return no(Reason.NO_GENERATORS, f"{message}rollout.generatorsDeadlineSeconds {limit}{why}")
    if situation.guests_refused:
        return no(Reason.GENERATORS_REFUSED, f"{count}{why}")
    lost = any(item.message for item in status.generator_pods)
    return no(Reason.GENERATORS_LOST if lost else Reason.GENERATORS_STARTING, f"{count}{why}")


def _why(situation: Situation, decision: Decision, pods: Sequence[PodFacts]) -> str:
    """What keeps those that are not ready, the most telling first."""
    if situation.guests_refused:
        return f"; no other can be made: {situation.guests_refused}"
    lost = [_lost(item) for item in decision.status.generator_pods if item.message]
    stuck = [f"pod {pod.name}: {pod.stuck.message}" for pod in pods if pod.stuck is not None]
    unplaced = [f"pod {pod.name}: {pod.unschedulable}" for pod in pods if pod.unschedulable]
    result = (*lost, *stuck, *unplaced)
    more = f"; and {len(result) - _MOST_NAMED} more" if len(result) > _MOST_NAMED else ""
    return "".join(f"; {item}" for item in result[:_MOST_NAMED]) + more


def _lost(item: GeneratorStatus) -> str:
    when = f", not before {item.next_start_time}" if item.next_start_time else ""
    return f"generator {item.index}: {item.message}; start {item.start}{when}"
