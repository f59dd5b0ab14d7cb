"""Conditions of a job: their reasons, which are stable names that people and alerts match, and how they change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, Self, get_args

from rljob_api.v1alpha1.status import Condition, ConditionType
from rljob_operator.vocabulary.timestamps import timestamp

MAX_MESSAGE_LENGTH = 4096


class ReasonText(StrEnum):
    """A stable word, with its sentence in docs/conditions.md. Members are written `NAME = "Word", "What it means."`."""

    meaning: str
    """The sentence."""

    def __new__(cls, value: str, meaning: str = "") -> Self:
        member = str.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member


class Reason(ReasonText):
    """Why a condition is as it is."""

    # Accepted
    VALID = "Valid", "The job can run."
    INVALID_SPEC = (
        "InvalidSpec",
        "The spec contradicts itself or leaves a step no room; the message lists every problem. Final.",
    )
    INVALID_DAG = (
        "InvalidDAG",
        "The stages do not fit together: a cycle, a missing producer, an unreachable stage. Final.",
    )
    PLAN_TOO_LARGE = "PlanTooLarge", "The plan does not fit into a ConfigMap of 1 MiB. Final."
    IMAGE_UNKNOWN = (
        "ImageUnknown",
        "No image of workers or models is known for the accelerator; the message says where to name one.",
    )
    UNKNOWN_PROFILE = (
        "UnknownProfile",
        "The operator has no accelerator profile of this name; the message lists those it has.",
    )
    STORAGE_CLAIM_MISSING = "StorageClaimMissing", "A PersistentVolumeClaim that the job names is not there."
    STORAGE_CLAIM_NOT_BOUND = (
        "StorageClaimNotBound",
        "A PersistentVolumeClaim has no volume, and does not wait for a pod to get one.",
    )
    CODE_MISSING = (
        "CodeMissing",
        "The ConfigMap of spec.code is not there, or lacks a module that the job names.",
    )
    SECRET_MISSING = "SecretMissing", "A Secret or ConfigMap that variables come from is not there, or lacks the key."
    POD_SECURITY_CONFLICT = (
        "PodSecurityConflict",
        "The accelerator needs more than podSecurity or the namespace's Pod Security level allows.",
    )
    BEYOND_CEILINGS = (
        "BeyondCeilings",
        "The job, or a pod of it, would go beyond a ceiling that an administrator set; the message says which. "
        "Accepted once the spec or the ceiling allows it.",
    )
    NAMESPACE_TERMINATING = "NamespaceTerminating", "The job's namespace is being deleted, and takes nothing new."
    SCHEDULER_MISSING = (
        "SchedulerMissing",
        "The cluster does not have the scheduling provider that the job names or its accelerator needs.",
    )
    KUBERAY_MISSING = (
        "KubeRayMissing",
        "The administrator wants models beside jobs to be RayServices, and the cluster has no KubeRay.",
    )
    NAME_CONFLICT = "NameConflict", "An object that is not the job's has the name of one of its children."

    # Suspended
    NOT_SUSPENDED = "NotSuspended", "spec.suspend is false."
    SUSPENDING = "Suspending", "Pods are writing their checkpoints and going."
    STEPS_RAISED = "StepsRaised", "stop.steps was raised: pods write their checkpoints and go, and an attempt follows."
    SUSPENDED = "Suspended", "spec.suspend is true and no pod is left."

    # QuotaReserved
    NO_QUEUE = "NoQueue", "The job waits in no queue."
    QUOTA_RESERVED = "QuotaReserved", "The queue has let the job in."
    QUOTA_PENDING = "QuotaPending", "The job waits in its queue."
    EVICTED = "Evicted", "The queue takes the job's quota back; its pods write checkpoints and go, and it queues again."

    # Scheduled
    NOT_STARTED = "NotStarted", "No attempt has begun, or the next is about to."
    CREATING_PODS = "CreatingPods", "Pods are being made."
    WAITING_FOR_SERVICES = "WaitingForServices", "Pods are made once every model beside the job is healthy."
    WAITING_FOR_NODES = "WaitingForNodes", "Some pods have no node yet; the message says why."
    ALL_PODS_PLACED = "AllPodsPlaced", "Every pod has a node."
    GANG_TIMED_OUT = (
        "GangTimedOut",
        "Not all pods found a node within scheduling.timeoutSeconds, so all gave theirs back; another attempt follows.",
    )
    PODS_ENDING = "PodsEnding", "Pods of the last attempt must be gone before the next begins."
    PREDECESSOR_ENDING = "PredecessorEnding", "Children of a deleted job of the same name must be gone first."
    QUOTA_EXCEEDED = "QuotaExceeded", "A ResourceQuota of the namespace leaves no room for the gang; tried again."
    FORBIDDEN = "Forbidden", "The operator's service account lacks a right; the message says which verb on what."
    REJECTED = "Rejected", "The API server or an admission plugin refuses a child of the job; another attempt follows."

    KIND_MISSING = (
        "KindMissing",
        "The cluster lacks a kind or a namespace that a child of the job needs, such as the CRD of PodMonitors.",
    )

    # ServicesReady
    SERVICES_HEALTHY = "ServicesHealthy", "Every model beside the job answers."
    SERVICES_STARTING = "ServicesStarting", "Pods of models are placed, pull images, or load; the message says which."
    SERVICE_UNHEALTHY = (
        "ServiceUnhealthy",
        "A model answered, and does not now. Ray Serve starts its copies again; when none answers for healthSeconds, "
        "its pod ends with the last words, and is made again. Rewards with onError: Retry wait.",
    )
    SERVICE_FAILED = (
        "ServiceFailed",
        "A model ended, or was never healthy: the message has its last words. Its pod is made again while the gang "
        "goes on, up to failurePolicy.maxRestarts times; then, or where no start would help, the job fails.",
    )
    SERVICES_STOPPED = "ServicesStopped", "The job does not run, and its models have given their pods back."

    # GeneratorsReady
    ALL_GENERATORS_READY = (
        "AllGeneratorsReady",
        "Every pod of the elastic group that spec.generators asks for is ready.",
    )
    GENERATORS_STARTING = (
        "GeneratorsStarting",
        "Some pods of the elastic group are placed, pull images or load; the message says how many are ready.",
    )
    GENERATORS_LOST = (
        "GeneratorsLost",
        "Pods of the elastic group ended or were taken away, and others take their place; the message has their last "
        "words. Their parts of a step are generated by those that are there, and the gang goes on.",
    )
    NO_GENERATORS = (
        "NoGenerators",
        "No pod of the elastic group is ready: training waits for the first, up to rollout.generatorsDeadlineSeconds.",
    )
    GENERATORS_REFUSED = (
        "GeneratorsRefused",
        "The cluster does not let a pod of the elastic group be made; the message says why. Tried again.",
    )
    GENERATORS_STOPPED = "GeneratorsStopped", "The job does not run, and its elastic group has given its pods back."

    # AgentsReady
    ALL_AGENTS_READY = "AllAgentsReady", "Every pod of agents is ready."
    AGENTS_STARTING = (
        "AgentsStarting",
        "Some pods of agents are made, placed or pull images; the message says how many are ready.",
    )
    AGENTS_FAILED = (
        "AgentsFailed",
        "A pod of agents cannot start, such as without its image, ends again and again, or is not ready in time; the "
        "message has the pod and its last words. Kubernetes starts it again, and the gang goes on: a trajectory that "
        "no agent takes within agentPool.claimSeconds has failed.",
    )
    AGENTS_REFUSED = (
        "AgentsRefused",
        "The cluster does not let pods of agents be made, such as by a ResourceQuota of the namespace; the message "
        "says why. Kubernetes tries again.",
    )
    AGENTS_STOPPED = "AgentsStopped", "The job does not run, and has no pods of agents."

    # Ready
    NO_PODS = "NoPods", "There are no pods."
    PODS_STARTING = "PodsStarting", "Pods pull images, start containers or load models."
    PODS_NOT_READY = "PodsNotReady", "All pods were ready, and some are not now."
    ALL_PODS_READY = "AllPodsReady", "Every pod is ready."

    # Progressing
    NOT_RUNNING = "NotRunning", "No gang runs."
    NO_STEP_YET = "NoStepYet", "The gang runs; its first step is not finished."
    STEP_ADVANCING = "StepAdvancing", "Training goes on."
    PROGRESS_UNREACHABLE = "ProgressUnreachable", "The lead pod does not answer /progress; that alone restarts nothing."

    # Degraded
    # Healthy
    NO_WARNING = "NoWarning", "Metrics of the last steps show nothing that keeps the policy from learning."
    NOT_LEARNING = (
        "NotLearning",
        "Metrics show what keeps the policy from learning, such as groups whose rewards are all alike; the message "
        "says what, with the field to change. The job goes on.",
    )

    # Degraded
    AS_EXPECTED = "AsExpected", "Nothing is wrong."
    CLUSTER_FAILS = (
        "ClusterFails",
        "The API server, or a webhook behind it, fails; the message names the request. Tried again after pauses.",
    )
    OPERATOR_ERROR = (
        "OperatorError",
        "A bug of the operator's, met at this job; its log has the trace. Tried again after growing pauses.",
    )
    POD_TERMINATING = "PodTerminating", "A pod is being deleted by somebody; the gang writes a checkpoint."
    POD_STUCK_TERMINATING = (
        "PodStuckTerminating",
        "A pod does not go; it is deleted by force after lifecycle.forceDeleteSeconds.",
    )
    IMAGE_PULL_FAILED = "ImagePullFailed", "A node cannot get an image. Fails the job after 15 minutes."
    CONTAINER_CONFIG_INVALID = "ContainerConfigInvalid", "A container cannot be made. Fails the job after 15 minutes."
    SPEC_CHANGED = (
        "SpecChanged",
        "A field that may not change was changed where the API server did not refuse it; that is of no effect.",
    )
    POD_FAILED = "PodFailed", "A container of a pod failed."
    OUT_OF_MEMORY = "OOMKilled", "A container used more memory than its limit."
    POD_DISRUPTED = "PodDisrupted", "A pod was evicted, preempted or lost with its node. Not counted."
    POD_DELETED = "PodDeleted", "Somebody deleted a pod. Not counted."
    DATA_BUFFER_RESTARTED = (
        "DataBufferRestarted",
        "A data buffer ended and was started again, without its rows. Counted.",
    )
    STALLED = "Stalled", "The step stood still for lifecycle.stallSeconds. Counted."

    # Complete and Failed
    NOT_FINISHED = "NotFinished", "The job goes on."
    ALL_PODS_DONE = "AllPodsDone", "Every pod of the groups of successPolicy ended with exit code 0."
    ENDED_OTHERWISE = "EndedOtherwise", "The job ended, in the other way."
    RESTARTS_EXHAUSTED = "RestartsExhausted", "The gang failed once more than failurePolicy.maxRestarts allows."
    STOPPED_BY_RULE = "StoppedByRule", "A rule of failurePolicy stops the job on this failure."
    SAME_BUG_TWICE = (
        "SameBugTwice",
        "A worker ended with exit code 70 twice at the same step, with no checkpoint in between.",
    )
    INVALID_JOB = "InvalidJob", "A worker ended with exit code 64: the job cannot run as it is written."
    BAD_DATA = "BadData", "A worker ended with exit code 65: the data cannot be used."
    STORAGE_FAILED = "StorageFailed", "A worker ended with exit code 74: a disk or the storage failed."
    INTERRUPTED = "Interrupted", "A worker ended with exit code 130: somebody interrupted it."
    GENERATORS_TIMEOUT = (
        "GeneratorsTimeout",
        "No pod of the elastic group was ready for rollout.generatorsDeadlineSeconds.",
    )
    PENDING_TIMEOUT = "PendingTimeout", "The pods were not all ready within lifecycle.pendingSeconds."
    ACTIVE_DEADLINE_EXCEEDED = "ActiveDeadlineExceeded", "The job ran for lifecycle.activeSeconds."


Status = Literal["True", "False", "Unknown"]


@dataclass(frozen=True)
class Claim:
    """What is said of one condition now."""

    status: Status
    reason: Reason
    message: str = ""


def known_reason(word: str, otherwise: Reason) -> Reason:
    """The reason of this word; a version of the operator that was rolled back may have written one of its own."""
    return Reason(word) if word in set(Reason) else otherwise


Claims = Mapping[ConditionType, Claim]


def yes(reason: Reason, message: str = "") -> Claim:
    return Claim("True", reason, message)


def no(reason: Reason, message: str = "") -> Claim:
    return Claim("False", reason, message)


def unknown(reason: Reason, message: str = "") -> Claim:
    return Claim("Unknown", reason, message)


TYPES: tuple[ConditionType, ...] = get_args(ConditionType)


def merged_conditions(
    before: Iterable[Condition], claims: Claims, now: float, generation: int
) -> tuple[Condition, ...]:
    """The conditions after `claims`; what nothing is claimed of stays, and a time moves only when a status does."""
    known = {item.type: item for item in before}
    after = (_merged(known.get(type_), type_, claims.get(type_), now, generation) for type_ in TYPES)
    return tuple(item for item in after if item is not None)


def condition(conditions: Iterable[Condition], type_: ConditionType) -> Condition | None:
    """The condition of this type."""
    return next((item for item in conditions if item.type == type_), None)


def is_true(conditions: Iterable[Condition], type_: ConditionType) -> bool:
    """Whether the condition is there and holds."""
    result = condition(conditions, type_)
    return result is not None and result.status == "True"


def clipped(message: str) -> str:
    """At most what the API takes; the beginning, where the cause is."""
    return message if len(message) <= MAX_MESSAGE_LENGTH else message[: MAX_MESSAGE_LENGTH - 2] + " …"


def _merged(
    before: Condition | None, type_: ConditionType, claim: Claim | None, now: float, generation: int
) -> Condition | None:
    if claim is None:
        return before
    is_same = before is not None and before.status == claim.status
    return Condition(
        type=type_,
        status=claim.status,
        reason=str(claim.reason),
        message=clipped(claim.message),
        last_transition_time=before.last_transition_time if before is not None and is_same else timestamp(now),
        observed_generation=generation,
    )
