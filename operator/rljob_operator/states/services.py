"""Models served beside a gang: a pod each, or a RayService, which outlives attempts, and is made again by itself where
it ends.

start 1 made -> seen -> ready -> ended: start 2, at once
                  '-> ended without having been ready: start 2, after a pause that grows
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from enum import Enum, auto
from typing import Any

from rljob_api.lifetime.failure_policy import DISRUPTION_TARGET, RestartGang, StopJob, apply_failure_policy
from rljob_api.v1alpha1.status import ENDED_PHASES, LIVING_PHASES, ServiceStatus
from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_operator import names
from rljob_operator.states import ending
from rljob_operator.states.claims.services import claim, unready
from rljob_operator.states.situation.conditions import Reason, no
from rljob_operator.states.situation.facts import AdmissionState, PodFacts, Termination
from rljob_operator.states.situation.situation import END_GRACE_SECONDS, Decision, QueueAction, Situation, earliest
from rljob_operator.vocabulary.timestamps import seconds_of

_MAX_MESSAGE_LENGTH = 2048

RAY_START_SECONDS = 300
"""What images and Ray itself may take before healthSeconds of a RayService begin."""


def with_services(situation: Situation) -> Situation:
    """The situation with what became of the services' pods written down."""
    known = {service.name: service for service in situation.status.services}
    wanted = [service.name for service in situation.spec.services]
    result = (_seen(situation, known.get(name) or _unknown(situation, name)) for name in wanted)
    return situation.with_status(services=tuple(result))


def failed_service(situation: Situation) -> ServiceStatus | None:
    """A service without which the job cannot go on, and that no other start would help."""
    return next((service for service in situation.status.services if service.stopped), None)


def unhealthy_services(situation: Situation) -> list[str]:
    """Names of the services that do not answer."""
    return [service.name for service in situation.status.services if not service.ready]


def with_service_pods(situation: Situation, decision: Decision) -> Decision:
    """`decision`, with what is done about the services: they are made before the gang, live as long as the job holds
    its place, and give theirs back before that is given up."""
    if not situation.spec.services and not situation.service_pods:
        return decision
    wish = _wish(situation, decision)
    if wish is _Wish.NONE:
        decision = _given_up(decision)
    decision = _without_strays(situation, decision, wish)
    if wish is _Wish.KEEP:
        decision = _started(situation, decision)
    if not situation.spec.services:
        return decision
    return decision.claiming("ServicesReady", claim(situation, decision, are_wanted=wish is not _Wish.NONE))


class _Wish(Enum):
    KEEP = auto()
    """They run, and where one ends it is started again."""
    LEAVE = auto()
    """Those that run go on: the gang needs them for its last step."""
    NONE = auto()


def _wish(situation: Situation, decision: Decision) -> _Wish:
    phase = decision.status.phase
    if phase == "Suspending":
        return _Wish.LEAVE if situation.pods else _Wish.NONE
    if situation.admission.state is not AdmissionState.ADMITTED:
        return _Wish.LEAVE if situation.pods else _Wish.NONE
    if phase == "Pending":  # between two attempts the job holds its place, and else it has none
        is_pause = decision.status.next_attempt_time is not None and situation.refusal is None
        return _Wish.KEEP if is_pause else _Wish.NONE
    return _Wish.KEEP if phase in (*LIVING_PHASES, "Restarting") else _Wish.NONE


# What was seen of them.


def _unknown(situation: Situation, name: str) -> ServiceStatus:
    """A service that nothing was written of: pods that are there mean that the status was lost."""
    starts = (pod.start for pod in situation.service_pods if pod.service == name)
    return ServiceStatus(name=name, start=max(starts, default=1))


def _seen(situation: Situation, known: ServiceStatus) -> ServiceStatus:
    pod = _pod(situation, known)
    if pod is None:
        if known.start_time is None:
            return known
        last = situation.departed.get(names.service_pod_name(situation.name, known.name, known.start))
        return _ended(situation, known, last)
    pod = _in_time(situation, known, pod)
    if pod.ended is not None or pod.is_over or pod.ends_at is not None or pod.is_out_of_sight:
        return _ended(situation, known, pod)
    seen = {"start_time": known.start_time or situation.timestamp, "ready": pod.is_ready}
    if pod.is_ready:
        ready_time = known.ready_time or situation.timestamp
        return known.model_copy(update={**seen, "ready_time": ready_time, "futile_starts": 0, "message": ""})
    return known.model_copy(update=seen)


def _in_time(situation: Situation, known: ServiceStatus, pod: PodFacts) -> PodFacts:
    """A pod of ours counts healthSeconds itself; KubeRay waits for ever, so a RayService ends here."""
    if pod.kind == "Pod" or known.start_time is None or known.ready_time is not None:
        return pod
    seconds = next(service.health_seconds for service in situation.spec.services if service.name == known.name)
    is_waiting = pod.unschedulable or pod.stuck is not None or pod.ended is not None
    if is_waiting or situation.now - seconds_of(known.start_time) <= RAY_START_SECONDS + seconds:
        return pod
    words = f"not healthy after healthSeconds {seconds:g}: {pod.says or 'it says nothing'}"
    return replace(pod, is_ready=False, ended=Termination("", int(ExitCode.RETRY), "", words))


def _ended(situation: Situation, known: ServiceStatus, pod: PodFacts | None) -> ServiceStatus:
    """What follows the end of its pod; one that was taken from outside is not the service's failure."""
    disruption, ended = _disruption(pod), None if pod is None else pod.ended
    policy = situation.spec.failure_policy
    code = (None if ended is None else ended.exit_code) or int(ExitCode.RETRY)  # a service has no good end
    if code == ExitCode.INVALID_JOB and known.ready_time is not None:
        code = int(ExitCode.RETRY)  # it has been healthy once, and may be again
    verdict = apply_failure_policy([code], known.failures, policy, [DISRUPTION_TARGET] if disruption else [])
    is_counted = not isinstance(verdict, RestartGang) or verdict.counted
    futile = 0 if known.ready_time is not None else known.futile_starts + 1
    words = f"{_words(ended, disruption)}{f' ({verdict.reason})' if isinstance(verdict, StopJob) else ''}"
    return _next_start(
        known,
        failures=known.failures + is_counted,
        futile_starts=futile,
        next_start_time=situation.after_a_pause(futile) if futile else None,
        stopped=isinstance(verdict, StopJob),
        message=words[:_MAX_MESSAGE_LENGTH],
    )


def _disruption(pod: PodFacts | None) -> str:
    """What was done to the pod; empty where it ended by itself."""
    if pod is None or pod.is_out_of_sight:
        return str(Reason.POD_DELETED)
    deleted = str(Reason.POD_DELETED) if pod.ends_at is not None or pod.ended is None else ""
    return pod.disruption or deleted


def _words(ended: Termination | None, disruption: str) -> str:
    if disruption or ended is None:
        return f"its pod went ({disruption})"
    return f"it ended with exit code {ended.exit_code}: {ended.message or ended.reason or 'no last words'}"


def _next_start(known: ServiceStatus, **changes: Any) -> ServiceStatus:
    fresh = {"start": known.start + 1, "start_time": None, "ready": False, "ready_time": None, "next_start_time": None}
    return known.model_copy(update={**fresh, **changes})


def _pod(situation: Situation, known: ServiceStatus) -> PodFacts | None:
    own = (pod for pod in situation.service_pods if (pod.service, pod.start) == (known.name, known.start))
    return next(own, None)


# What is done about them.


def _given_up(decision: Decision) -> Decision:
    given_up = (
        _next_start(service, futile_starts=0) if service.start_time is not None else service
        for service in decision.status.services
    )
    return replace(decision, status=decision.status.model_copy(update={"services": tuple(given_up)}))


def _without_strays(situation: Situation, decision: Decision, wish: _Wish) -> Decision:
    """Pods of other starts than the one that is meant to be go, whatever the phase; quota goes back after them."""
    meant = {(service.name, service.start) for service in decision.status.services if wish is not _Wish.NONE}
    strays = tuple(pod for pod in situation.service_pods if (pod.service, pod.start) not in meant)
    if decision.status.phase in ENDED_PHASES and situation.spec.lifecycle.clean_pod_policy != "All":
        strays = tuple(pod for pod in strays if not pod.is_over)  # they have logs
    going = ending.deletions(situation, strays, END_GRACE_SECONDS)
    decision = ending.with_stuck_pods(situation, strays, replace(decision, deletions=(*decision.deletions, *going)))
    gives_back = wish is _Wish.NONE and decision.queue in (QueueAction.RELEASE, QueueAction.LEAVE)
    if gives_back and any(not pod.is_over for pod in strays):
        return replace(decision, queue=QueueAction.NONE)
    return decision


def _started(situation: Situation, decision: Decision) -> Decision:
    """Those that are not there are made, each when its predecessor is gone and its pause over; the gang follows when
    all are ready."""
    services = decision.status.services
    due = [] if situation.refusal or situation.admission.unplaceable else list(_due(situation, services))
    decision = replace(decision, starts_services=tuple(due), keeps_children=decision.keeps_children or bool(due))
    pauses = (
        seconds_of(service.next_start_time) for service in services if service.next_start_time and not service.stopped
    )
    next_start = earliest(pause for pause in pauses if pause > situation.now)
    decision = decision.again_within(None if next_start is None else next_start - situation.now)
    if not decision.creates_pods or situation.current or all(service.ready for service in services):
        return decision
    waiting = replace(decision, creates_pods=False, keeps_children=True)
    return waiting.claiming("Scheduled", no(Reason.WAITING_FOR_SERVICES, unready(services)))


def _due(situation: Situation, services: Sequence[ServiceStatus]) -> Iterator[str]:
    for service in services:
        pods = [pod for pod in situation.service_pods if pod.service == service.name]
        is_absent = not any(pod.start == service.start for pod in pods)
        pause = service.next_start_time
        is_over = pause is None or seconds_of(pause) <= situation.now
        if is_absent and is_over and not service.stopped and all(pod.is_over for pod in pods):
            yield service.name
