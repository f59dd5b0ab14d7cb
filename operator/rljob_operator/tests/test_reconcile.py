"""What becomes of a job, event by event, on a fake cluster."""

from __future__ import annotations

from typing import Any

import pytest

from rljob_operator.cluster.errors import ClusterError, Forbidden, QuotaExceeded, Rejected, Unavailable
from rljob_operator.cluster.kinds import (
    CONFIG_MAP,
    NAMESPACE,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    RLJOB,
    SECRET,
    SERVICE,
    STORAGE_CLASS,
    Kind,
)
from rljob_operator.progress import ProgressAnswer, Unreachable
from rljob_operator.tests.fake_cluster import names
from rljob_operator.tests.world import KEY, SPEC, TWO_PODS, World, disrupted, ended, running


@pytest.fixture
def world() -> World:
    return World()


# ---- a life without trouble -----------------------------------------------------------------------


def test_children_are_made_before_pods_and_the_attempt_is_written_before_any(world: World) -> None:
    world.submit(**TWO_PODS)
    world.reconcile()
    made = [(kind, name) for verb, kind, name in world.cluster.done if kind != "Event"]
    assert made[0] == ("RLJob", "small")
    assert [kind for kind, _ in made[1:]] == ["ConfigMap", "Service", "Secret", "Pod", "Pod"]
    assert names(world.pods) == ["small-train-0-a1", "small-train-1-a1"]


def test_job_runs_and_succeeds(world: World) -> None:
    world.to_running(**TWO_PODS)
    assert world.status.ready == "2/2"
    world.clock.now += 40
    world.end_worker(0, 0, step=10)
    assert world.status.phase == "Running"
    world.end_worker(1, 0, step=10)
    status = world.status
    assert (status.phase, status.attempt, status.restarts, status.active_seconds) == ("Succeeded", 1, 0, 40)
    assert world.reason("Complete") == ("True", "AllPodsDone")
    assert world.reason("Failed")[0] == "False"
    assert status.progress is not None and status.progress.step == 10
    assert len(world.pods) == 2, "cleanPodPolicy Running keeps what has ended"


def test_success_policy_looks_at_its_groups_only(world: World) -> None:
    groups = [{"name": "train"}, {"name": "rollout"}]
    world.to_running(workerGroups=groups, successPolicy={"groups": ["train"]})
    by_name = {pod["metadata"]["name"]: index for index, pod in enumerate(world.pods)}
    world.end_worker(by_name["small-train-0-a1"], 0)
    assert world.status.phase == "Succeeded"
    world.wait(3)
    assert names(world.pods) == ["small-train-0-a1"], "what still ran is deleted"


@pytest.mark.parametrize(
    ("policy", "kept"), [("None", 2), ("Running", 1), ("All", 0)], ids=lambda value: str(value)
)  # fmt: skip
def test_clean_pod_policy_after_a_failure(world: World, policy: str, kept: int) -> None:
    world.to_running(lifecycle={"cleanPodPolicy": policy}, **TWO_PODS)
    world.end_worker(0, 65, "train.parquet: no column question")
    world.wait(3)
    assert world.status.phase == "Failed"
    world.wait(3)
    assert len(world.pods) == kept


def test_finished_job_is_deleted_when_its_time_has_come(world: World) -> None:
    world.to_running(lifecycle={"ttlSecondsAfterFinished": 60})
    world.end_worker(0, 0)
    world.clock.now += 59
    assert world.reconcile() == 1.0
    world.clock.now += 1
    world.reconcile()
    assert world.cluster.peek_job() is None and not world.pods
    assert world.reconcile() is None


@pytest.mark.parametrize(("code", "condition"), [(0, "Complete"), (65, "Failed")])
def test_end_is_final(world: World, code: int, condition: str) -> None:
    world.to_running()
    world.end_worker(0, code)
    world.wait(3)
    before = world.status
    world.edit(suspend=True)
    world.cluster.remove(POD, world.pods[0], grace_seconds=0)
    world.wait(1000)
    assert world.reason(condition)[0] == "True"
    assert (world.status.phase, world.status.attempt) == (before.phase, before.attempt)
    assert not world.pods


def test_jobs_of_others_and_jobs_that_are_being_deleted_are_left_alone(world: World) -> None:
    world.submit(managedBy="kueue.x-k8s.io/multikueue")
    assert world.reconcile() is None
    assert "status" not in world.job and not world.pods


def test_unknown_job_is_forgotten(world: World) -> None:
    assert world.reconcile() is None


# ---- suspend and resume ---------------------------------------------------------------------------


def test_suspended_pods_get_their_grace_and_the_next_attempt_is_not_counted(world: World) -> None:
    world.to_running(lifecycle={"terminationGraceSeconds": 60}, **TWO_PODS)
    world.clock.now += 10
    world.edit(suspend=True)
    world.settle()
    assert world.status.phase == "Suspending" and world.reason("Suspended") == ("False", "Suspending")
    assert len(world.pods) == 2, "they write a checkpoint"
    world.wait(30)
    assert not world.pods and world.reason("Suspended") == ("True", "Suspended")
    assert world.status.active_seconds == 10
    world.wait(100_000)
    assert world.status.phase == "Suspended", "no deadline runs"
    world.edit(suspend=False)
    world.settle()
    assert (world.status.phase, world.status.attempt, world.status.restarts) == ("Starting", 2, 0)
    assert names(world.pods) == ["small-train-0-a2", "small-train-1-a2"]


def test_job_that_is_made_suspended_has_no_pods_until_it_is_resumed(world: World) -> None:
    world.submit(suspend=True)
    world.settle()
    assert world.status.phase == "Suspended" and not world.pods and world.status.attempt == 0
    world.edit(suspend=False)
    world.settle()
    assert world.status.attempt == 1 and len(world.pods) == 1


def test_failure_while_suspending_is_not_counted(world: World) -> None:
    world.to_running()
    world.edit(suspend=True)
    world.settle()
    world.end_worker(0, 75)
    world.wait(5)
    world.wait(5)
    assert (world.status.phase, world.status.restarts) == ("Suspended", 0)


# ---- failures -------------------------------------------------------------------------------------


def test_bad_data_of_one_pod_is_not_hidden_behind_the_lost_peer_of_another(world: World) -> None:
    world.to_running(**TWO_PODS)
    world.end_worker(0, 75, "lost train-1")
    assert world.status.phase == "Running" and world.reason("Degraded") == ("True", "PodFailed")
    world.end_worker(1, 65, "train.parquet: no column question")
    world.wait(3)
    assert world.reason("Failed") == ("True", "BadData")
    failure = world.status.last_failure
    assert failure is not None and (failure.pod, failure.exit_code) == ("small-train-1-a1", 65)
    assert "no column question" in world.condition("Failed").message


def test_failed_gang_is_deleted_with_little_grace_and_started_again_when_it_is_gone(world: World) -> None:
    world.to_running(**TWO_PODS)
    world.end_worker(0, 137)
    world.wait(3)
    assert world.status.phase == "Restarting"
    survivor = world.pods[-1]
    assert survivor["metadata"]["name"] == "small-train-1-a1" and "deletionTimestamp" in survivor["metadata"]
    world.settle()
    assert world.status.attempt == 1, "the old pod is still there"
    world.wait(2)
    assert names(world.pods) == ["small-train-0-a2", "small-train-1-a2"]
    assert (world.status.attempt, world.status.restarts, world.status.counted_restarts) == (2, 1, 1)


def test_restarts_are_used_up(world: World) -> None:
    world.to_running(failurePolicy={"maxRestarts": 0})
    world.end_worker(0, 70, "ValueError: no")
    world.wait(3)
    assert world.reason("Failed") == ("True", "RestartsExhausted")
    assert "ValueError: no" in world.condition("Failed").message


def test_rule_of_the_policy_stops_the_job(world: World) -> None:
    rules = [{"onExitCodes": [70], "action": "Stop"}]
    world.to_running(failurePolicy={"rules": rules})
    world.end_worker(0, 70)
    world.wait(3)
    assert world.reason("Failed") == ("True", "StoppedByRule")


def test_out_of_memory_is_named(world: World) -> None:
    world.to_running(**TWO_PODS)
    world.end_worker(0, 137, reason="OOMKilled")
    assert world.reason("Degraded") == ("True", "OOMKilled")
    failure = world.status.last_failure
    assert failure is not None and failure.reason == "OOMKilled"


def test_evicted_pod_is_not_counted_even_where_no_rule_says_so(world: World) -> None:
    world.to_running(failurePolicy={"maxRestarts": 0, "rules": [{"onExitCodes": [70], "action": "Stop"}]})
    world.set_pod(world.pods[0], disrupted(ended(137), "TerminationByKubelet"))
    world.wait(3)
    world.wait(3)
    assert (world.status.restarts, world.status.counted_restarts) == (1, 0)


def test_eviction_for_what_the_pod_itself_used_is_counted(world: World) -> None:
    world.to_running()
    evicted = {"phase": "Failed", "reason": "Evicted", "message": "Pod used 9Gi of ephemeral-storage"}
    world.set_pod(world.pods[0], evicted)
    world.wait(3)
    assert world.status.counted_restarts == 1
    failure = world.status.last_failure
    assert failure is not None and "9Gi" in failure.message


def test_drained_pod_has_time_for_a_checkpoint_of_the_gang(world: World) -> None:
    world.to_running(**TWO_PODS)
    world.set_pod(world.pods[0], disrupted(running(), "EvictionByEvictionAPI"))
    world.cluster.remove(POD, world.pods[0])
    world.settle()
    assert world.status.phase == "Running" and world.reason("Degraded") == ("True", "PodTerminating")
    world.set_pod(world.pods[0], disrupted(ended(76), "EvictionByEvictionAPI"))
    world.clock.now += 5
    world.settle()
    assert world.status.phase == "Running", "the other may still be writing"
    world.end_worker(1, 76)
    world.wait(3)
    world.wait(3)
    assert (world.status.attempt, world.status.restarts, world.status.counted_restarts) == (2, 1, 0)


def test_pod_deleted_by_hand_restarts_the_gang_uncounted(world: World) -> None:
    world.to_running(**TWO_PODS)
    world.cluster.remove(POD, world.pods[0], grace_seconds=0)
    world.wait(3)
    world.wait(3)
    world.wait(3)
    assert (world.status.attempt, world.status.restarts, world.status.counted_restarts) == (2, 1, 0)


def test_pod_deleted_while_no_operator_was_there(world: World) -> None:
    world.to_running()
    world.cluster.remove(POD, world.pods[0], grace_seconds=0)
    world.restart_operator()
    world.wait(3)
    world.wait(3)
    assert world.status.attempt == 2


def test_data_buffer_that_was_started_again_is_noticed_and_counted(world: World) -> None:
    world.to_running()
    terminated = {"exitCode": 137, "reason": "OOMKilled"}
    buffer = {
        "name": "data-buffer",
        "restartCount": 1,
        "lastState": {"terminated": terminated},
        "state": {"running": {}},
    }
    world.set_pod(world.pods[0], running(initContainerStatuses=[buffer]))
    world.settle()
    world.wait(3)
    failure = world.status.last_failure
    assert failure is not None and (failure.container, failure.exit_code) == ("data-buffer", 137)
    assert world.reason("Degraded") == ("True", "DataBufferRestarted")
    assert world.status.counted_restarts == 1


def test_silent_node_is_not_waited_for_longer_than_told(world: World) -> None:
    """Its node is marked, the pod is evicted with 600 s of grace, and nothing ends it."""
    world.to_running(lifecycle={"forceDeleteSeconds": 5})
    cut_off = running()
    cut_off["conditions"][-1] = {"type": "Ready", "status": "False"}
    world.cluster.node_is_dead = lambda pod: pod["metadata"]["name"] == "small-train-0-a1"
    world.set_pod(world.pods[0], disrupted(cut_off, "DeletionByTaintManager"))
    world.cluster.remove(POD, world.pods[0])
    world.settle()
    world.wait(3)
    assert world.status.phase == "Restarting" and world.status.counted_restarts == 0
    assert world.reason("Degraded") == ("True", "PodDisrupted")
    world.wait(6)
    assert names(world.pods) == ["small-train-0-a1"] and world.reason("Degraded")[1] == "PodStuckTerminating"
    world.wait(2)
    assert names(world.pods) == ["small-train-0-a2"], "2 s of grace and 5 s more"
    assert [each["note"] for each in world.cluster.events("PodForceDeleted")] == ["small-train-0-a1"]


# ---- deadlines ------------------------------------------------------------------------------------


def test_pods_that_never_become_ready_fail_the_job(world: World) -> None:
    world.submit(lifecycle={"pendingSeconds": 100})
    world.settle()
    world.clock.now += 99
    assert world.reconcile() == pytest.approx(1.0)
    world.wait(1)
    assert world.reason("Failed") == ("True", "PendingTimeout")


def test_half_placed_gang_gives_its_places_back_and_tries_again_later(world: World) -> None:
    world.submit(scheduling={"timeoutSeconds": 60}, **TWO_PODS)
    world.settle()
    world.set_pod(world.pods[0], running(), node="node1")
    world.wait(60)
    assert world.reason("Scheduled") == ("False", "GangTimedOut")
    world.wait(2)
    assert not world.pods and world.status.phase == "Pending"
    world.wait(6)
    assert (world.status.attempt, world.status.restarts) == (2, 0)


def test_active_seconds_end_the_job(world: World) -> None:
    world.to_running(lifecycle={"activeSeconds": 50})
    world.wait(49)
    assert world.status.phase == "Running"
    world.wait(1)
    assert world.reason("Failed") == ("True", "ActiveDeadlineExceeded")


def test_image_that_cannot_be_pulled_is_said_and_in_the_end_fails_the_job(world: World) -> None:
    world.submit()
    world.settle()
    waiting = {"reason": "ImagePullBackOff", "message": "not found"}
    worker = {"name": "worker", "image": "nowhere/worker:1", "state": {"waiting": waiting}}
    world.set_pod(world.pods[0], {"phase": "Pending", "containerStatuses": [worker]}, node="node1")
    world.settle()
    assert world.reason("Degraded") == ("True", "ImagePullFailed")
    assert "nowhere/worker:1" in world.condition("Degraded").message
    world.wait(900)
    assert world.reason("Failed") == ("True", "ImagePullFailed")


# ---- progress -------------------------------------------------------------------------------------


def test_progress_is_shown(world: World) -> None:
    world.to_running()
    metrics = {f"metric/{number}": 1 / 3 for number in range(40)}
    world.progress.answer = ProgressAnswer(
        attempt=1, step=4, total_steps=10, reward=0.123456, step_seconds=2.5, checkpoint_step=2, metrics=metrics
    )
    world.wait(10)
    progress = world.status.progress
    assert world.progress.asked[-1] == "10.0.0.1:9400"
    assert progress is not None and (progress.step, progress.percent, progress.reward) == (4, 40, "0.1235")
    assert progress.estimated_remaining_seconds == 15  # 6 steps of 2.5 s
    assert len(progress.metrics) == 32 and progress.metrics[0].value == "0.3333"
    assert world.reason("Progressing") == ("True", "StepAdvancing")


def test_answer_of_an_earlier_attempt_is_not_ours(world: World) -> None:
    world.to_running()
    world.progress.answer = ProgressAnswer(attempt=7, step=4)
    world.wait(10)
    assert world.status.progress is None


def test_step_that_stands_still_restarts_the_gang(world: World) -> None:
    world.to_running(lifecycle={"stallSeconds": 100})
    world.progress.answer = ProgressAnswer(attempt=1, step=4, total_steps=10)
    world.wait(10)
    world.wait(99)
    assert world.status.phase == "Running"
    world.wait(10)
    assert world.reason("Degraded") == ("True", "Stalled")
    world.wait(3)
    world.wait(3)
    assert (world.status.attempt, world.status.counted_restarts) == (2, 1)


def test_silence_is_a_condition_and_no_stall(world: World) -> None:
    world.to_running(lifecycle={"stallSeconds": 100})
    world.progress.answer = ProgressAnswer(attempt=1, step=4, total_steps=10)
    world.wait(10)
    world.progress.answer = Unreachable("connection refused")
    world.wait(10)
    world.wait(10)
    assert world.reason("Progressing") == ("True", "StepAdvancing")
    world.wait(5000)
    assert world.status.phase == "Running"
    assert world.reason("Progressing") == ("Unknown", "ProgressUnreachable")
    assert "connection refused" in world.condition("Progressing").message


# ---- bad input and bad surroundings ---------------------------------------------------------------

CYCLE = {
    "stages": [
        {"name": "rollout", "run": "Rollout", "models": ["actor"], "after": ["update"]},
        {"name": "reward", "run": "Reward", "after": ["rollout"]},
        {"name": "advantage", "run": "Advantage", "after": ["reward"]},
        {"name": "update", "run": "UpdatePolicy", "models": ["actor"], "after": ["advantage"]},
    ]
}


@pytest.mark.parametrize(
    ("spec", "reason", "words"),
    [
        ({"dag": CYCLE}, "InvalidDAG", "cycle"),
        ({"training": {"miniBatchRows": 5}}, "InvalidSpec", "spec.training.miniBatchRows"),
        ({"traning": {}}, "InvalidSpec", "Did you mean training?"),
        ({"dataBuffer": {"memory": "1Ki"}}, "ImpossiblePlan", "dataBuffer"),
    ],
)
def test_what_cannot_run_fails_before_any_pod(world: World, spec: dict[str, Any], reason: str, words: str) -> None:
    world.submit(**spec)
    world.settle()
    assert world.reason("Accepted") == ("False", reason) and world.reason("Failed") == ("True", reason)
    assert words in world.condition("Accepted").message
    assert world.status.attempt == 0 and not world.pods


def test_unknown_profile_waits_and_lists_the_known(world: World) -> None:
    world.submit(workerGroups=[{"name": "train", "accelerator": {"profile": "nvidia-h1000"}}])
    world.settle()
    assert world.reason("Accepted") == ("False", "UnknownProfile") and world.status.phase == "Pending"
    assert "nvidia-h100" in world.condition("Accepted").message
    world.wait(7200)
    assert world.reason("Failed") == ("True", "PendingTimeout")


def test_plan_larger_than_a_config_map_fails_before_any_pod(world: World) -> None:
    world.submit(env=[{"name": f"V{number}", "value": "x" * 32768} for number in range(40)])  # 1.3 MB
    world.settle()
    assert world.reason("Failed") == ("True", "PlanTooLarge") and not world.pods
    assert "spec.env" in world.condition("Failed").message


def claim(phase: str, storage_class: str = "") -> dict[str, Any]:
    return {"metadata": {"name": "disk"}, "spec": {"storageClassName": storage_class}, "status": {"phase": phase}}


STORAGE = {"storage": {"persistentVolumeClaim": "disk"}}


def test_storage_claim_must_be_there_and_bound(world: World) -> None:
    world.submit(**STORAGE)
    world.settle()
    assert world.reason("Accepted") == ("False", "StorageClaimMissing") and not world.pods
    world.cluster.put(PERSISTENT_VOLUME_CLAIM, KEY.namespace, claim("Pending"))
    world.settle()
    assert world.reason("Accepted") == ("False", "StorageClaimNotBound") and not world.pods
    world.cluster.edit(PERSISTENT_VOLUME_CLAIM, KEY.namespace, "disk", status={"phase": "Bound"})
    world.settle()
    assert world.reason("Accepted") == ("True", "Valid") and len(world.pods) == 1


def test_claim_that_waits_for_a_pod_gets_one(world: World) -> None:
    fast = {"metadata": {"name": "fast"}, "volumeBindingMode": "WaitForFirstConsumer"}
    world.cluster.put(STORAGE_CLASS, None, fast)
    world.cluster.put(PERSISTENT_VOLUME_CLAIM, KEY.namespace, claim("Pending", "fast"))
    world.submit(**STORAGE)
    world.settle()
    assert len(world.pods) == 1


def test_code_must_hold_the_modules_that_the_job_names(world: World) -> None:
    world.submit(code={"configMap": "mine"})
    world.settle()
    assert world.reason("Accepted") == ("False", "CodeMissing")
    world.cluster.put(CONFIG_MAP, KEY.namespace, {"metadata": {"name": "mine"}, "data": {"other.py": ""}})
    world.settle()
    message = world.condition("Accepted").message
    assert "my_rewards.py" in message and "other.py" in message and not world.pods
    world.cluster.edit(CONFIG_MAP, KEY.namespace, "mine", data={"my_rewards.py": ""})
    world.settle()
    assert len(world.pods) == 1


def test_code_must_hold_the_modules_of_the_algorithm_too(world: World) -> None:
    algorithm = {**SPEC["algorithm"], "loss": {"name": "my_losses:squared"}}
    world.cluster.put(CONFIG_MAP, KEY.namespace, {"metadata": {"name": "mine"}, "data": {"my_rewards.py": ""}})
    world.submit(code={"configMap": "mine"}, algorithm=algorithm)
    world.settle()
    assert "my_losses.py" in world.condition("Accepted").message and not world.pods


def test_secret_of_a_variable_must_hold_the_key(world: World) -> None:
    reference = {"secretKeyRef": {"name": "hf", "key": "token"}}
    world.submit(env=[{"name": "HF_TOKEN", "valueFrom": reference}])
    world.settle()
    assert world.reason("Accepted") == ("False", "SecretMissing")
    world.cluster.put(SECRET, KEY.namespace, {"metadata": {"name": "hf"}, "data": {"tokn": ""}, "stringData": {}})
    world.settle()
    assert "tokn" in world.condition("Accepted").message
    world.cluster.edit(SECRET, KEY.namespace, "hf", data={"token": ""})
    world.settle()
    assert len(world.pods) == 1


def test_namespace_that_admits_no_such_pods(world: World) -> None:
    world.submit(workerGroups=[{"name": "train", "accelerator": {"profile": "gaudi"}}])
    world.settle()
    assert world.reason("Accepted") == ("False", "PodSecurityConflict") and not world.pods


def test_namespace_that_is_being_deleted_gets_no_new_attempt(world: World) -> None:
    world.to_running()
    world.cluster.edit(NAMESPACE, None, KEY.namespace, metadata={"deletionTimestamp": "2027-01-15T08:00:00Z"})
    world.end_worker(0, 75)
    world.wait(3)
    assert world.reason("Accepted") == ("False", "NamespaceTerminating")
    assert world.status.attempt == 1 and not world.pods


def test_accelerator_without_an_image(world: World) -> None:
    world.submit(workerGroups=[{"name": "train", "accelerator": {"profile": "tpu"}}])
    world.settle()
    assert world.reason("Accepted") == ("False", "ImageUnknown") and not world.pods


def test_service_of_the_same_name_is_not_touched(world: World) -> None:
    world.cluster.put(SERVICE, KEY.namespace, {"metadata": {"name": "small"}, "spec": {"ports": []}})
    world.submit()
    world.settle()
    assert world.reason("Scheduled") == ("False", "NameConflict") and not world.pods
    assert "Service small" in world.condition("Scheduled").message
    service = world.cluster.peek(SERVICE, KEY.namespace, "small")
    assert service is not None and service["spec"] == {"ports": []}


def test_pods_of_a_deleted_job_of_the_same_name_are_waited_for(world: World) -> None:
    world.to_running()
    world.cluster.remove(RLJOB, world.job)
    world.submit()
    world.settle()
    assert world.reason("Scheduled") == ("False", "PredecessorEnding")
    assert names(world.pods) == ["small-train-0-a1"]
    world.wait(1)
    assert world.status.attempt == 1 and len(world.pods) == 1


def refusing(error: type[ClusterError], verb: str, kind: Kind, message: str) -> Any:
    def refuse(asked: str, of: Kind, name: str) -> ClusterError | None:
        return error(verb, kind, KEY.namespace, message) if (asked, of) == (verb, kind) else None

    return refuse


@pytest.mark.parametrize(
    ("error", "reason"), [(QuotaExceeded, "QuotaExceeded"), (Forbidden, "Forbidden"), (Rejected, "Rejected")]
)
def test_pods_that_are_refused_leave_no_half_gang(world: World, error: type[ClusterError], reason: str) -> None:
    def refuse(verb: str, kind: Kind, name: str) -> ClusterError | None:
        is_second = (verb, kind) == ("create", POD) and "train-1" in name
        return error(verb, kind, KEY.namespace, "exceeded quota: few") if is_second else None

    world.cluster.refuse = refuse
    world.submit(**TWO_PODS)
    world.settle()
    assert world.reason("Scheduled") == ("False", reason) and not world.pods
    assert (
        "few" in world.condition("Scheduled").message
        and "create pods in namespace team" in world.condition("Scheduled").message
    )
    world.wait(1)
    assert world.reason("Scheduled") == ("False", reason), "it is known while the next attempt waits"
    world.cluster.refuse = lambda verb, kind, name: None
    world.wait(10)
    assert len(world.pods) == 2 and world.status.restarts == 0


def test_outage_is_for_the_queue_to_retry(world: World) -> None:
    world.cluster.refuse = refusing(Unavailable, "create", POD, "no answer")
    world.submit(**TWO_PODS)
    with pytest.raises(Unavailable):
        world.settle()
    world.cluster.refuse = lambda verb, kind, name: None
    world.settle()
    assert names(world.pods) == ["small-train-0-a1", "small-train-1-a1"]


# ---- edits by hand --------------------------------------------------------------------------------


def test_service_edited_or_deleted_by_hand_is_healed(world: World) -> None:
    world.to_running()
    wanted = world.cluster.peek(SERVICE, KEY.namespace, "small")
    assert wanted is not None
    world.cluster.edit(SERVICE, KEY.namespace, "small", spec={**wanted["spec"], "publishNotReadyAddresses": False})
    world.settle()
    healed = world.cluster.peek(SERVICE, KEY.namespace, "small")
    assert healed is not None and healed["spec"] == wanted["spec"]
    world.cluster.remove(SERVICE, healed)
    world.settle()
    assert world.cluster.peek(SERVICE, KEY.namespace, "small") is not None
    assert {each["note"] for each in world.cluster.events("ChildHealed")} == {"Service small"}


def test_lost_status_is_found_again_from_the_pods(world: World) -> None:
    world.to_running()
    world.end_worker(0, 75)
    world.wait(3)
    world.wait(3)
    world.run_pods()
    world.settle()
    assert world.status.attempt == 2
    world.cluster.edit(RLJOB, KEY.namespace, KEY.name, status={"phase": "Succeeded", "attempt": "two"})
    world.settle()
    assert (world.status.phase, world.status.attempt) == ("Running", 2)
    assert names(world.pods) == ["small-train-0-a2"]


def test_edit_that_nothing_refused_is_of_no_effect_and_said(world: World) -> None:
    world.to_running()
    world.edit(algorithm={"name": "GRPO", "groupSize": 8}, failurePolicy={"maxRestarts": 9})
    world.settle()
    assert world.reason("Degraded") == ("True", "SpecChanged")
    assert "spec.algorithm" in world.condition("Degraded").message
    world.end_worker(0, 75)
    world.wait(3)
    world.wait(3)
    assert world.status.attempt == 2
    plans = names(world.cluster.all(CONFIG_MAP))
    assert world.status.plan_config_map in plans
    plan = world.cluster.peek(CONFIG_MAP, KEY.namespace, str(world.status.plan_config_map))
    assert (
        plan is not None
        and '"groupSize":4' in plan["data"]["plan.json"]
        and '"maxRestarts":9' in plan["data"]["plan.json"]
    )


def test_status_is_written_only_when_it_changed(world: World) -> None:
    world.to_running()
    before = world.cluster.num_writes
    for _ in range(5):
        world.reconcile()
    assert world.cluster.num_writes == before


def test_events_tell_the_story_once(world: World) -> None:
    world.to_running()
    world.cluster.remove(POD, world.pods[0], grace_seconds=0)
    world.settle()
    world.wait(3)
    told = [(each["type"], each["reason"]) for each in world.cluster.events()]
    assert told == [
        ("Normal", "AttemptStarted"),
        ("Normal", "Running"),
        ("Warning", "PodDeleted"),
        ("Warning", "Restarting"),
        ("Normal", "AttemptStarted"),
    ]
    restarting = world.cluster.events("Restarting")[0]
    assert restarting["note"].startswith("attempt 1 ended: PodDeleted, pod small-train-0-a1: the pod is gone")
    assert restarting["regarding"]["uid"] == world.job["metadata"]["uid"]
