"""What becomes of a job, event by event, on a fake cluster."""

from __future__ import annotations

import pytest

from rljob_operator.cluster.kinds import (
    CONFIG_MAP,
    POD,
    RLJOB,
    SERVICE,
)
from rljob_operator.states.situation.facts import ProgressAnswer, UnreachableLead
from rljob_operator.tests.fake_cluster import names
from rljob_operator.tests.world import KEY, TWO_PODS, World


@pytest.fixture
def world() -> World:
    return World()


# ---- a life without trouble ----------------------------------------------------------------------


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


# ---- suspend and resume --------------------------------------------------------------------------


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


# ---- progress ------------------------------------------------------------------------------------


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


def test_nobody_is_asked_who_is_not_there(world: World) -> None:
    world.to_running()
    assert world.progress.followed == {KEY}
    world.edit(suspend=True)
    world.settle()
    assert world.progress.followed == set()


def test_answer_of_an_earlier_attempt_is_not_ours(world: World) -> None:
    world.to_running()
    world.progress.answer = ProgressAnswer(attempt=7, step=4)
    world.wait(10)
    assert world.status.progress is None


def test_step_that_stands_still_restarts_the_gang(world: World) -> None:
    world.to_running(lifecycle={"stallSeconds": 100})
    world.progress.answer = ProgressAnswer(phase="Running", attempt=1, step=4, total_steps=10)
    world.wait(10)
    world.wait(99)
    assert world.status.phase == "Running"
    world.wait(10)
    assert world.reason("Degraded") == ("True", "Stalled")
    world.wait(3)
    world.wait(3)
    assert (world.status.attempt, world.status.counted_restarts) == (2, 1)


def test_loading_is_no_step_that_stands_still(world: World) -> None:
    """Until the first step is done, what counts is how long a job may be pending."""
    world.to_running(lifecycle={"stallSeconds": 100, "pendingSeconds": 500})
    world.progress.answer = ProgressAnswer(attempt=1)
    world.wait(10)
    world.wait(489)
    assert world.status.phase == "Running" and world.reason("Degraded")[0] == "False"
    world.wait(11)
    assert world.reason("Degraded") == ("True", "Stalled")


def test_silence_is_a_condition_and_no_stall(world: World) -> None:
    world.to_running(lifecycle={"stallSeconds": 100})
    world.progress.answer = ProgressAnswer(attempt=1, step=4, total_steps=10)
    world.wait(10)
    world.progress.answer = UnreachableLead("connection refused")
    world.wait(10)
    world.wait(10)
    assert world.reason("Progressing") == ("True", "StepAdvancing")
    world.wait(5000)
    assert world.status.phase == "Running"
    assert world.reason("Progressing") == ("Unknown", "ProgressUnreachable")
    assert "connection refused" in world.condition("Progressing").message


# ---- edits by hand -------------------------------------------------------------------------------


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
    assert {event["message"] for event in world.cluster.events("ChildHealed")} == {"Service small"}


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


def test_steps_that_are_raised_are_done_by_another_attempt(world: World) -> None:
    world.to_running()
    world.edit(stop={"steps": 15})
    world.settle()
    assert (world.status.phase, world.reason("Suspended")) == ("Suspending", ("False", "StepsRaised"))
    world.restart_operator()
    world.wait(3)
    world.run_pods()
    world.settle()
    status = world.status
    assert (status.phase, status.attempt, status.restarts) == ("Running", 2, 0)
    plan = world.cluster.peek(CONFIG_MAP, KEY.namespace, str(status.plan_config_map))
    assert (
        plan is not None and '"stop":{"activeSeconds":null,"rewardAbove":null,"steps":15}' in plan["data"]["plan.json"]
    )
    world.edit(stop={"steps": 12})
    world.settle()
    assert world.reason("Degraded") == ("True", "SpecChanged") and world.status.attempt == 2
    world.end_worker(0, 0)
    assert world.status.phase == "Succeeded"


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
    events = [(event["type"], event["reason"]) for event in world.cluster.events()]
    assert events == [
        ("Normal", "AttemptStarted"),
        ("Normal", "Running"),
        ("Warning", "PodDeleted"),
        ("Warning", "Restarting"),
        ("Normal", "AttemptStarted"),
    ]
    restarting = world.cluster.events("Restarting")[0]
    assert restarting["message"].startswith("attempt 1 ended: PodDeleted, pod small-train-0-a1: the pod is gone")
    assert restarting["involvedObject"]["uid"] == world.job["metadata"]["uid"]


def test_events_are_in_order_by_what_kubectl_sorts_them_by(world: World) -> None:
    """lastTimestamp, in whole seconds, and their names, by which the server lists them."""
    world.to_running()
    world.clock.now += 45
    world.edit(suspend=True)
    for _ in range(3):
        world.wait(1)
    events = world.cluster.events()
    listed = sorted(events, key=lambda item: item["metadata"]["name"])
    described = sorted(listed, key=lambda item: item["lastTimestamp"])
    assert [item["reason"] for item in described] == [item["reason"] for item in events]
    assert {"AttemptStarted", "Running", "Suspending", "Suspended"} <= {item["reason"] for item in described}
    assert all(item["count"] == 1 and item["firstTimestamp"] == item["lastTimestamp"] for item in events)
