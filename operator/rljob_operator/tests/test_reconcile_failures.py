"""What becomes of a job whose pods fail, are taken away, or never start."""

from __future__ import annotations

import pytest

from rljob_operator.cluster.api import Object
from rljob_operator.cluster.errors import Forbidden
from rljob_operator.cluster.kinds import CONFIG_MAP, POD
from rljob_operator.tests.fake_cluster import names
from rljob_operator.tests.world import KEY, TWO_PODS, World, disrupted, ended, running


@pytest.fixture
def world() -> World:
    return World()


# ---- failures ------------------------------------------------------------------------------------


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


def away_from(pod: Object) -> list[str]:
    """Nodes that a pod should not have."""
    affinity = pod["spec"].get("affinity", {}).get("nodeAffinity", {})
    terms = affinity.get("preferredDuringSchedulingIgnoredDuringExecution", [])
    return [node for term in terms for item in term["preference"]["matchFields"] for node in item["values"]]


def test_a_node_on_which_workers_failed_twice_is_avoided_for_an_hour(world: World) -> None:
    world.to_running(failurePolicy={"maxRestarts": 9})
    seen = []
    for _ in range(2):
        world.end_worker(0, 137)
        world.wait(6)
        world.run_pods()
        world.settle()
        seen.append(away_from(world.pods[0]))
    assert seen == [[], ["node1"]]
    assert "the next attempt avoids node1" in next(
        event["message"] for event in world.cluster.events() if "avoids" in event.get("message", "")
    )
    world.clock.now += 3600
    world.end_worker(0, 137)
    world.wait(6)
    assert away_from(world.pods[0]) == [] and [
        suspect_node.failures for suspect_node in world.status.suspect_nodes
    ] == [1]


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


@pytest.mark.parametrize(
    ("last", "reported"),
    [
        (disrupted(ended(76), "EvictionByEvictionAPI"), ("PodDisrupted", "EvictionByEvictionAPI", 76, 0)),
        (disrupted(running(), "PreemptionByScheduler"), ("PodDisrupted", "PreemptionByScheduler", 75, 0)),
        (ended(137, reason="OOMKilled"), ("OOMKilled", "", 137, 1)),
        (running(), ("PodDeleted", "PodDeleted", 75, 0)),
    ],
)
def test_pod_that_ends_and_goes_between_two_looks_is_judged_by_its_last_state(
    world: World, last: Object, reported: tuple[str, str, int, int]
) -> None:
    """A busy operator may look next when a drained pod is gone."""
    world.to_running()
    world.set_pod(world.pods[0], last)
    world.cluster.remove(POD, world.pods[0], grace_seconds=0)
    world.settle()
    failure = world.status.last_failure
    assert failure is not None
    assert (failure.cause, failure.disruption, failure.exit_code, world.status.counted_restarts) == reported


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


def test_silent_node_is_not_waited_for_longer_than_configured(world: World) -> None:
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
    world.wait(3)
    assert names(world.pods) == ["small-train-0-a1"] and world.reason("Degraded")[1] == "PodStuckTerminating"
    world.wait(1)
    assert names(world.pods) == ["small-train-0-a2"], "2 s of grace and 5 s more, since it was evicted"
    assert [event["message"] for event in world.cluster.events("PodForceDeleted")] == ["small-train-0-a1"]


def test_pod_that_a_finalizer_holds_costs_nothing_while_it_is_waited_for(world: World) -> None:
    world.to_running(lifecycle={"forceDeleteSeconds": 5}, **TWO_PODS)
    held = world.pods[0]
    marks = {**held["metadata"], "finalizers": ["example.com/held"]}
    world.cluster.edit(POD, KEY.namespace, held["metadata"]["name"], metadata=marks)
    world.end_worker(1, 137)
    for _ in range(4):
        world.wait(5)
    assert "example.com/held" in world.condition("Degraded").message
    before = len(world.cluster.requests)
    for _ in range(10):
        world.wait(60)
    asked = world.cluster.requests[before:]
    assert {verb for verb, _, _ in asked} == {"get"}, "it is looked at, and nothing is asked of it"
    assert world.reconcile() is None, "that it goes is an event"
    world.cluster.edit(
        POD, KEY.namespace, held["metadata"]["name"], metadata={**world.pods[0]["metadata"], "finalizers": []}
    )
    world.wait(1)
    assert world.status.attempt == 2


def test_extra_container_that_outlives_the_worker_does_not_keep_the_accelerators(world: World) -> None:
    world.to_running(lifecycle={"terminationGraceSeconds": 60})
    status = ended(0)
    extra = {"name": "logger", "restartCount": 0, "state": {"running": {}}}
    status |= {"phase": "Running", "containerStatuses": [*status["containerStatuses"], extra]}
    world.set_pod(world.pods[0], status)
    world.settle()
    assert world.status.phase == "Succeeded" and world.reconcile() == 60.0
    world.wait(59)
    assert len(world.pods) == 1, "its data buffer has the time that it may take"
    world.wait(1)
    world.wait(2)
    assert not world.pods


def test_stray_pod_of_an_old_attempt_goes_at_once(world: World) -> None:
    """A leader that was paused, or a webhook that was slow, makes it late."""
    world.to_running()
    stray = world.pods[0]
    world.end_worker(0, 137)
    world.wait(3)
    world.run_pods()
    world.settle()
    assert (world.status.phase, world.status.attempt) == ("Running", 2)
    world.cluster.put(POD, KEY.namespace, {**stray, "status": running()})
    world.settle()
    assert world.attempts_alive == {"1", "2"}
    world.wait(3)
    assert names(world.pods) == ["small-train-0-a2"] and world.status.phase == "Running"


def test_pod_whose_label_somebody_takes_off_goes_before_the_next_attempt(world: World) -> None:
    """It has the host name of the next one, and writes where that will."""
    world.to_running(**TWO_PODS)
    pod = world.pods[0]
    labels = {name: value for name, value in pod["metadata"]["labels"].items() if name != "rljob.dev/job"}
    world.cluster.edit(POD, KEY.namespace, pod["metadata"]["name"], metadata={**pod["metadata"], "labels": labels})
    world.settle()
    assert "took label rljob.dev/job off" in world.condition("Degraded").message
    world.wait(3)
    hidden = world.cluster.peek(POD, KEY.namespace, pod["metadata"]["name"])
    assert hidden is not None and "deletionTimestamp" in hidden["metadata"] and world.status.attempt == 1
    world.wait(2)
    assert names(world.pods) == ["small-train-0-a2", "small-train-1-a2"] and world.status.counted_restarts == 0


def test_plans_of_attempts_that_are_over_go(world: World) -> None:
    world.to_running()
    (first,) = names(world.cluster.all(CONFIG_MAP, KEY.namespace))
    user_made = {"metadata": {"name": "mine", "labels": {"rljob.dev/job": KEY.name, "rljob.dev/component": "plan"}}}
    world.cluster.put(CONFIG_MAP, KEY.namespace, user_made)
    world.edit(failurePolicy={"maxRestarts": 9})
    world.end_worker(0, 137)
    world.wait(3)
    assert world.status.attempt == 2 and world.status.plan_config_map != first
    assert names(world.cluster.all(CONFIG_MAP, KEY.namespace)) == sorted(["mine", str(world.status.plan_config_map)])


def test_what_an_operator_may_not_delete_is_left(world: World) -> None:
    world.cluster.refuse = lambda verb, kind, name: (
        Forbidden(verb, kind, "team", "no") if (verb, kind) == ("list", CONFIG_MAP) else None
    )
    world.to_running()
    assert world.status.phase == "Running"


def test_same_bug_at_the_same_step_does_not_use_up_the_restarts(world: World) -> None:
    world.to_running(failurePolicy={"maxRestarts": 9})
    for _ in range(2):
        world.run_pods()
        world.settle()
        world.end_worker(0, 70, "ValueError: no", step=4)
        world.wait(3)
        world.wait(3)
    assert world.reason("Failed") == ("True", "SameBugTwice") and world.status.attempt == 2


# ---- deadlines -----------------------------------------------------------------------------------


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
