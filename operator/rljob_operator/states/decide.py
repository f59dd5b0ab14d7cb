"""`decide`: from a situation to what is reported and done."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from rljob_api.v1alpha1.status import Phase
from rljob_operator.states import ending, finished, living, waiting
from rljob_operator.states.claims.agents import with_agents
from rljob_operator.states.guests import with_guest_pods, with_guests
from rljob_operator.states.healing import healed
from rljob_operator.states.progress import with_progress
from rljob_operator.states.report import reported
from rljob_operator.states.services import with_service_pods, with_services
from rljob_operator.states.situation.situation import Decision, Situation
from rljob_operator.states.strays import without_strays

_PHASES: Mapping[Phase, Callable[[Situation], Decision]] = {
    "Pending": waiting.pending,
    "Starting": living.run_attempt,
    "Running": living.run_attempt,
    "Restarting": ending.end,
    "Suspending": ending.end,
    "Suspended": waiting.suspended,
    "Succeeded": finished.finished,
    "Failed": finished.finished,
}


def decide(situation: Situation) -> Decision:
    """What to report and do.

    The status is written before anything is done.  So an attempt has its number before it has pods, a failure is
    counted once, with the pods that show it still there, and the next operator continues from the written status.
    """
    seen = with_guests(with_services(with_progress(healed(situation))))
    decision = without_strays(seen, _gone_on(seen, _PHASES[seen.status.phase](seen)))
    decision = with_guest_pods(seen, with_service_pods(seen, decision))
    return reported(seen, with_agents(seen, decision))


def _gone_on(situation: Situation, decision: Decision) -> Decision:
    """An attempt that ends, or is given up, without a pod left has ended: what follows is decided at once. Models
    beside the job stay for the next attempt, and are gone before the job is suspended, and so are guests: the gang of
    the next attempt need not wait for these."""
    phase = decision.status.phase
    beside = (*situation.service_pods, *situation.guest_pods)
    left = (*situation.pods, *(beside if phase == "Suspending" else ()))
    if phase not in ("Restarting", "Suspending") or left:
        return decision
    after = waiting.pending(replace(situation, status=decision.status).with_status(phase="Pending"))
    return replace(after, claims={**after.claims, **decision.claims})
