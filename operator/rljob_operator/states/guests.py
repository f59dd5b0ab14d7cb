"""Pods of an elastic group, the guests of an attempt: each is made, lost and replaced by itself, and the gang goes on.

start 1 made -> ready -> lost: start 2, at once
            '-> lost without having been ready: start 2, after a pause that grows

They begin once every pod of the gang has a node, for no guest may have the place of one without which nothing runs, and
go with their attempt: where that is suspended, when its gang has written its checkpoint and is gone. A loss restarts
nothing and counts against nothing, but an exit code that says that the job or its data is bad stops the job: another
pod would end the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from rljob_api.lifetime.failure_policy import DISRUPTION_TARGET, why_guest_ends_job
from rljob_api.v1alpha1.status import ENDED_PHASES, LIVING_PHASES, GeneratorStatus, SuspectNode
from rljob_api.vocabulary import keys
from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_operator.states import ending, finished
from rljob_operator.states.claims.generators import claim
from rljob_operator.states.failing import reason_of_code
from rljob_operator.states.failures.faults import fault_of_pod, faults
from rljob_operator.states.failures.suspects import blamed, may_be_the_nodes
from rljob_operator.states.situation.conditions import Reason
from rljob_operator.states.situation.facts import AdmissionState, PodFacts
from rljob_operator.states.situation.situation import END_GRACE_SECONDS, Decision, GuestStart, Situation, earliest
from rljob_operator.vocabulary.timestamps import seconds_of, seconds_since

_MAX_MESSAGE_LENGTH = 256


def with_guests(situation: Situation) -> Situation:
    """The situation with what became of the guests of the current attempt written down."""
    if situation.spec.elastic_group is None or situation.status.phase not in LIVING_PHASES:
        return situation
    if faults(situation):  # the attempt ends, and its guests with it
        return situation
    numbers, lost = _numbers(situation), list[PodFacts]()
    for index, known in numbers.items():
        pod = situation.guest(index, known.start)
        if pod is None or _is_done(situation, pod):
            continue
        if _is_lost(pod):
            lost.append(pod)
            numbers[index] = _next_start(situation, known, pod)
        elif pod.is_ready and not known.ready:
            fresh = {"ready": True, "futile_starts": 0, "next_start_time": None, "message": ""}
            numbers[index] = known.model_copy(update=fresh)
    remembered = (item for item in numbers.values() if item != GeneratorStatus(index=item.index))
    situation = situation.with_status(generator_pods=tuple(remembered))
    return _clocked(_counted(situation, lost))


def stop_for_guest(situation: Situation) -> Decision | None:
    """A guest that says by its exit code that the job cannot work ends it; every other would say so, too."""
    for pod in _of_attempt(situation):
        if pod.ended is None or pod.ended.exit_code == ExitCode.DONE:
            continue
        fault = fault_of_pod(situation, pod)
        conditions = [DISRUPTION_TARGET] if fault is not None and fault.disruption else []
        stop = why_guest_ends_job(pod.ended.exit_code, situation.spec.failure_policy, conditions)
        if stop is not None:
            message = f"generator {pod.guest}, pod {pod.name}: {pod.ended.message} ({stop.reason})"
            return finished.fail_job(situation, reason_of_code(stop), message)
    return None


def generators_deadline(situation: Situation) -> Decision | None:
    """rollout.generatorsDeadlineSeconds."""
    since, limit = situation.status.generators_absent_time, situation.spec.rollout.generators_deadline_seconds
    if since is None or seconds_since(since, situation.now) < limit:
        return None
    message = f"no generator was ready for rollout.generatorsDeadlineSeconds, {limit} s{_last_words(situation)}"
    return finished.fail_job(situation, Reason.GENERATORS_TIMEOUT, message)


def with_guest_pods(situation: Situation, decision: Decision) -> Decision:
    """`decision`, with what is done about the guests."""
    group = situation.spec.elastic_group
    if group is None and not situation.guest_pods:
        return decision
    are_wanted = group is not None and _are_wanted(situation, decision)
    decision = _without_strays(situation, decision, are_wanted)
    if group is None:
        return decision
    if are_wanted:
        decision = _started(situation, decision)
    return _reported(situation, decision, are_wanted)


# What was seen of them.


def _numbers(situation: Situation) -> dict[int, GeneratorStatus]:
    """What is remembered of every number that is wanted. A pod of a later start means that the status was lost."""
    known = {item.index: item for item in situation.status.generator_pods}
    result = {
        index: known.get(index) or GeneratorStatus(index=index) for index in range(situation.spec.wanted_generators)
    }
    for pod in _of_attempt(situation):
        assert pod.guest is not None
        if pod.guest in result and result[pod.guest].start < pod.start:
            result[pod.guest] = GeneratorStatus(index=pod.guest, start=pod.start)
    return result


def _of_attempt(situation: Situation) -> Iterator[PodFacts]:
    return (pod for pod in situation.guest_pods if pod.attempt == situation.status.attempt)


def _is_done(situation: Situation, pod: PodFacts) -> bool:
    """Whether a guest has ended because there is nothing left to generate: then no other takes its place."""
    if not pod.is_done or pod.ends_at is not None or pod.disruption:
        return False
    progress, ahead = situation.status.progress, situation.spec.rollout.max_staleness + 2
    is_near_end = progress is not None and progress.step >= situation.spec.stop.steps - ahead
    return is_near_end or any(other.is_done for other in situation.current)


def _is_lost(pod: PodFacts) -> bool:
    is_over = pod.is_over or pod.ended is not None or pod.ends_at is not None
    return is_over or pod.num_buffer_restarts > 0 or pod.is_out_of_sight


def _next_start(situation: Situation, known: GeneratorStatus, pod: PodFacts) -> GeneratorStatus:
    """Another start follows, at once where this one was of use."""
    futile = 0 if known.ready else known.futile_starts + 1
    return GeneratorStatus(
        index=known.index,
        start=known.start + 1,
        futile_starts=futile,
        next_start_time=situation.after_a_pause(futile) if futile else None,
        message=_words(situation, pod)[:_MAX_MESSAGE_LENGTH],
    )


def _counted(situation: Situation, lost: Sequence[PodFacts]) -> Situation:
    """With the losses counted, and the nodes that may have caused them remembered."""
    suspects: Sequence[SuspectNode] = situation.status.suspect_nodes
    for pod in lost:
        fault = fault_of_pod(situation, pod)
        if fault is not None and pod.node and may_be_the_nodes(fault):
            suspects = blamed(suspects, pod.node, situation.now)
    total = situation.status.generators_lost + len(lost)
    return situation.with_status(generators_lost=total, suspect_nodes=tuple(suspects))


def _words(situation: Situation, pod: PodFacts) -> str:
    where = f" on node {pod.node}" if pod.node else ""
    fault = fault_of_pod(situation, pod)
    disruption = pod.disruption or (fault.disruption if fault is not None else "")
    if pod.ends_at is not None or disruption:
        return f"its pod{where} was taken away ({disruption or Reason.POD_DELETED})"
    if pod.ended is not None:
        return f"it ended{where} with exit code {pod.ended.exit_code}: {pod.ended.message or pod.ended.reason}"
    return f"its data buffer{where} ended, and its rows with it"


def _clocked(situation: Situation) -> Situation:
    """How long the gang that runs has had no guest."""
    status = situation.status
    waits = status.ready_time is not None and not num_ready(situation)
    waits = waits and not any(_is_done(situation, pod) for pod in _of_attempt(situation))
    since = (status.generators_absent_time or situation.timestamp) if waits else None
    return situation.with_status(generators_absent_time=since)


def num_ready(situation: Situation) -> int:
    """Guests of the current attempt that are ready and stay."""
    wanted = situation.spec.wanted_generators
    own = (pod for pod in _of_attempt(situation) if pod.guest is not None and pod.guest < wanted)
    return sum(pod.is_ready and not _is_lost(pod) for pod in own)


def _last_words(situation: Situation) -> str:
    said = (f"; generator {item.index}: {item.message}" for item in situation.status.generator_pods if item.message)
    unplaced = (f"; {pod.name}: {pod.unschedulable}" for pod in situation.guest_pods if pod.unschedulable)
    refused = [f"; {situation.guests_refused}"] if situation.guests_refused else []
    return next(iter((*refused, *said, *unplaced)), "")


# What is done about them.


def _are_wanted(situation: Situation, decision: Decision) -> bool:
    status = decision.status
    is_same = status.attempt == situation.status.attempt and status.phase in LIVING_PHASES
    return is_same and situation.admission.state is AdmissionState.ADMITTED


def _without_strays(situation: Situation, decision: Decision, are_wanted: bool) -> Decision:
    """Those of other attempts and starts go at once, and those that were scaled away with their grace."""
    now_written = replace(situation, status=decision.status)
    starts = {index: item.start for index, item in _numbers(now_written).items()} if are_wanted else {}
    strays, graceful = list[PodFacts](), list[PodFacts]()
    are_needed = decision.status.phase == "Suspending" and ending.leftovers(situation)
    for pod in situation.guest_pods:
        if are_needed and pod.attempt == decision.status.attempt:
            continue  # the gang writes its checkpoint after a step, which has rows of guests
        meant = None if pod.guest is None else starts.get(pod.guest)
        is_of_attempt = are_wanted and pod.attempt == decision.status.attempt
        if is_of_attempt and (meant is None or pod.ends_at is not None):
            graceful.append(pod)  # it hands over what it has not finished
        elif not is_of_attempt or pod.start != meant:
            strays.append(pod)
    if decision.status.phase in ENDED_PHASES and situation.spec.lifecycle.clean_pod_policy != "All":
        strays = [pod for pod in strays if not pod.is_over]  # they have logs
    grace = situation.spec.lifecycle.termination_grace_seconds
    going = (
        *ending.deletions(situation, tuple(strays), END_GRACE_SECONDS),
        *ending.deletions(situation, tuple(graceful), grace),
    )
    decision = replace(decision, deletions=(*decision.deletions, *going))
    return ending.with_stuck_pods(situation, (*strays, *graceful), decision)


def _started(situation: Situation, decision: Decision) -> Decision:
    """Each follows when its predecessor, which has the same host name, is gone and its pause over."""
    status = decision.status
    situation = replace(situation, status=status)
    known = list(_numbers(situation).values())
    pauses = (seconds_of(item.next_start_time) for item in known if item.next_start_time)
    next_start = earliest(pause for pause in pauses if pause > situation.now)
    decision = decision.again_within(None if next_start is None else next_start - situation.now)
    if status.generators_absent_time is not None:
        waited = seconds_since(status.generators_absent_time, situation.now)
        decision = decision.again_within(situation.spec.rollout.generators_deadline_seconds - waited)
    if situation.refusal or situation.are_guests_paused or not _is_gang_placed(situation):
        return decision
    return replace(decision, starts_guests=tuple(_due(situation, known)))


def _is_gang_placed(situation: Situation) -> bool:
    is_made = situation.status.pods_created_time is not None and not situation.missing
    return is_made and all(pod.node for pod in situation.current)


def _due(situation: Situation, known: Sequence[GeneratorStatus]) -> Iterator[GuestStart]:
    running = {pod.guest for pod in situation.guest_pods if not pod.is_over}
    there = {(pod.guest, pod.start) for pod in _of_attempt(situation)}
    for item in known:
        is_over = item.next_start_time is None or seconds_of(item.next_start_time) <= situation.now
        if item.index not in running and (item.index, item.start) not in there and is_over:
            yield GuestStart(item.index, item.start)


def _reported(situation: Situation, decision: Decision, are_wanted: bool) -> Decision:
    group, status = situation.spec.elastic_group, decision.status
    assert group is not None
    changes: dict[str, Any] = {
        "generators": num_ready(situation) if are_wanted else 0,
        "generators_wanted": situation.spec.wanted_generators if are_wanted else 0,
        "generator_selector": f"{keys.LABEL_JOB}={situation.name},{keys.LABEL_GROUP}={group.name}",
    }
    if not are_wanted:
        changes |= {"generator_pods": (), "generators_absent_time": None}
    decision = replace(decision, status=status.model_copy(update=changes))
    result = claim(situation, decision, are_wanted=are_wanted, pods=tuple(_of_attempt(situation)))
    return decision.claiming("GeneratorsReady", result)
