"""What is said of pods of agents beside a job."""

from __future__ import annotations

from rljob_api.v1alpha1.status import ENDED_PHASES, LIVING_PHASES
from rljob_operator.states.situation.conditions import Claim, Reason, no, yes
from rljob_operator.states.situation.situation import GIVING_BACK, Decision, Situation

LOOK_SECONDS = 15.0
"""How often agents that are not ready are looked at: no watch tells of their pods."""


def with_agents(situation: Situation, decision: Decision) -> Decision:
    """The decision with what AgentsReady is. The job goes on whatever that is: trajectories that no agent takes fail by
    themselves."""
    if situation.spec.agent_group is None:
        return decision
    claim = _claim(situation, decision)
    is_awaited = decision.status.phase in LIVING_PHASES and claim.status != "True"
    return decision.claiming("AgentsReady", claim).again_within(LOOK_SECONDS if is_awaited else None)


def _claim(situation: Situation, decision: Decision) -> Claim:
    facts, phase = situation.agents, decision.status.phase
    if phase in ENDED_PHASES or decision.queue in GIVING_BACK:
        return no(Reason.AGENTS_STOPPED)
    if not facts.is_there:
        waits = no(Reason.AGENTS_STARTING, "they are made once the gang's pods are")
        return waits if phase in LIVING_PHASES else no(Reason.AGENTS_STOPPED)
    count = f"{facts.ready} of {facts.wanted} pods of agents are ready"
    if facts.reason is not None:
        return no(facts.reason, f"{count}; {facts.message}")
    if facts.ready >= facts.wanted:
        return yes(Reason.ALL_AGENTS_READY, count)
    return no(Reason.AGENTS_STARTING, count)
