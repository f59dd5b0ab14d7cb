"""What is wrong with the pods of an attempt, and which of it explains the rest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rljob_api.lifetime.failure_policy import gang_exit_code
from rljob_api.v1alpha1.status import FailureStatus
from rljob_api.vocabulary import keys
from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_operator.states.situation.conditions import Reason, known_reason
from rljob_operator.states.situation.facts import PodFacts, ProgressAnswer, Termination
from rljob_operator.states.situation.situation import Situation
from rljob_operator.vocabulary.timestamps import seconds_of

_SAID_BY_KUBERNETES = {"OOMKilled": Reason.OUT_OF_MEMORY}


@dataclass(frozen=True)
class PodFault:
    """Why an attempt cannot go on."""

    reason: Reason
    pod: str
    container: str
    exit_code: int
    """Exit code of the container; 75 where the pod has none to show."""
    message: str
    said: str = ""
    """Kubernetes' own word for it."""
    disruption: str = ""
    """What was done to the pod from outside."""

    @property
    def weight(self) -> int:
        """The exit code that the failure policy weighs.

        A worker that stops on request was asked by its node, not by us; its peers see a lost peer.
        """
        return int(ExitCode.RETRY) if self.exit_code == ExitCode.STOPPED else self.exit_code


def faults(situation: Situation) -> list[PodFault]:
    """Every fault of the current attempt, and what was noted of it earlier."""
    result = [fault for pod in situation.current if (fault := fault_of_pod(situation, pod)) is not None]
    return [*_noted(situation), *result, *_vanished(situation), *_stalled(situation)]


def cause(result: Iterable[PodFault]) -> PodFault:
    """The fault that explains the others: the one whose exit code speaks for the gang; one noted earlier first."""
    known = list(result)
    code = gang_exit_code([fault.weight for fault in known])
    return next(fault for fault in known if fault.weight == code)


def noted(fault: PodFault, attempt: int, time: str) -> FailureStatus:
    """The fault as the status keeps it."""
    return FailureStatus(
        attempt=attempt,
        pod=fault.pod,
        container=fault.container,
        exit_code=fault.exit_code,
        reason=fault.said or str(fault.reason),
        cause=str(fault.reason),
        message=fault.message[:4096],
        time=time,
        disruption=fault.disruption,
    )


def is_going(situation: Situation, pod: PodFacts) -> bool:
    """Whether somebody deletes the pod and it may still use its grace for a checkpoint of the whole gang."""
    return pod.ends_at is not None and not pod.is_cut_off and situation.now < pod.ends_at and pod.ended is None


def fault_of_pod(situation: Situation, pod: PodFacts) -> PodFault | None:
    """What is wrong with a pod; None where nothing is."""
    if pod.ended is not None and pod.ended.exit_code != 0:
        return _of_end(pod, pod.ended)
    if pod.num_buffer_restarts and not pod.is_done:
        return _of_buffer(pod)
    if pod.is_out_of_sight:
        message, deleted = f"somebody took label {keys.LABEL_JOB} off the pod", Reason.POD_DELETED
        return PodFault(deleted, pod.name, "", int(ExitCode.RETRY), message, disruption=str(deleted))
    if pod.ends_at is not None and not pod.is_done and not is_going(situation, pod):
        disruption = pod.disruption or "NodeLost" if pod.is_cut_off else pod.disruption or str(Reason.POD_DELETED)
        message = f"the pod is being deleted ({disruption})"
        return PodFault(Reason.POD_DISRUPTED, pod.name, "", int(ExitCode.RETRY), message, disruption=disruption)
    return None


def _of_end(pod: PodFacts, ended: Termination) -> PodFault:
    deleted = str(Reason.POD_DELETED) if pod.ends_at is not None else ""
    disruption = pod.disruption or deleted
    reason = _SAID_BY_KUBERNETES.get(ended.reason, Reason.POD_FAILED)
    return PodFault(
        reason=Reason.POD_DISRUPTED if disruption else reason,
        pod=pod.name,
        container=ended.container,
        exit_code=ended.exit_code,
        message=ended.message,
        said=ended.reason,
        disruption=disruption,
    )


def _of_buffer(pod: PodFacts) -> PodFault:
    """A data buffer that starts again has lost its rows, and its pod does not fail by that."""
    ended = pod.buffer_ended or Termination(keys.CONTAINER_BUFFER, int(ExitCode.RETRY), "", "it was started again")
    return PodFault(
        reason=Reason.DATA_BUFFER_RESTARTED,
        pod=pod.name,
        container=ended.container,
        exit_code=ended.exit_code or int(ExitCode.RETRY),
        message=ended.message or "it ended and was started again, without its rows",
        said=ended.reason,
    )


def _vanished(situation: Situation) -> Iterator[PodFault]:
    if situation.status.pods_created_time is None:
        return
    for name in situation.missing:
        yield _of_departed(name, situation.departed.get(name))


def _of_departed(name: str, last: PodFacts | None) -> PodFault:
    """The fault of a pod that is gone: if it ended between two looks, its last state says why."""
    if last is not None and last.ended is not None and last.ended.exit_code != 0:
        return _of_end(last, last.ended)
    code = int(ExitCode.RETRY)
    if last is not None and last.disruption:
        message = f"the pod is gone ({last.disruption})"
        return PodFault(Reason.POD_DISRUPTED, name, "", code, message, disruption=last.disruption)
    message, deleted = "the pod is gone; somebody deleted it", Reason.POD_DELETED
    return PodFault(deleted, name, "", code, message, disruption=str(deleted))


def _stalled(situation: Situation) -> Iterator[PodFault]:
    """Only an answer shows that the step stands still: silence may be the network's."""
    answer, status = situation.progress, situation.status
    if not isinstance(answer, ProgressAnswer) or status.progress is None or status.ready_time is None:
        return
    if status.generators_absent_time is not None:  # it waits for generators, which has a limit of its own
        return
    grew = max(seconds_of(time) for time in (status.progress.last_step_time, status.ready_time) if time)
    lifecycle = situation.spec.lifecycle
    field, limit = "stallSeconds", lifecycle.stall_seconds
    if answer.phase == "Starting" and lifecycle.pending_seconds > limit:
        # It loads: that is not a step which stands still.
        field, limit = "pendingSeconds", lifecycle.pending_seconds
    if situation.now - grew >= limit:
        message = f"step {status.progress.step} stood still for lifecycle.{field}, {limit} s"
        yield PodFault(Reason.STALLED, lead_pod(situation), keys.CONTAINER_WORKER, int(ExitCode.RETRY), message)


def lead_pod(situation: Situation) -> str:
    """The pod that serves progress."""
    return next(name for name, group in situation.expected.items() if group == situation.lead_group)


def _noted(situation: Situation) -> Iterator[PodFault]:
    """What was written of this attempt's failure, whose pod may be gone by now."""
    failure = situation.status.last_failure
    if failure is None or failure.attempt != situation.status.attempt or not failure.cause:
        return
    code = int(ExitCode.RETRY) if failure.exit_code is None else failure.exit_code
    reason = known_reason(failure.cause, Reason.POD_FAILED)
    yield PodFault(reason, failure.pod, failure.container, code, failure.message, failure.reason, failure.disruption)
