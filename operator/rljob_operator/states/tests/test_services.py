"""What becomes of the models beside a job, and of the gang that needs them."""

from dataclasses import replace

import pytest

from rljob_operator.states import decide
from rljob_operator.states.situation.conditions import Reason
from rljob_operator.states.situation.facts import Admission, AdmissionState, Stuck, Termination
from rljob_operator.states.situation.situation import Deletion, Obstacle, QueueAction, Refusal
from rljob_operator.states.tests.builders import EVICTED, NOW, WAITING, ago, alive, pending, pod, said
from rljob_operator.states.tests.services import (
    JUDGE,
    TWO,
    begun,
    broken,
    model,
    service_of,
    status,
    training,
)


def test_models_are_made_before_the_gang():
    decision = decide(pending(JUDGE))
    assert (decision.status.phase, decision.status.attempt) == ("Starting", 1)
    assert decision.starts_services == ("judge",) and not decision.creates_pods and decision.keeps_children
    assert said(decision, "Scheduled")[:2] == ("False", "WaitingForServices")
    assert said(decision, "ServicesReady") == ("False", "ServicesStarting", "not healthy yet: judge")


def test_the_gang_waits_until_all_of_them_answer():
    seen = begun(model(), model(service="my_model", is_ready=False), overrides=(TWO,))
    decision = decide(seen)
    assert decision.starts_services == () and not decision.creates_pods
    assert said(decision, "ServicesReady")[2] == "not healthy yet: my_model"
    decision = decide(replace(seen, service_pods=(model(), model(service="my_model"))))
    assert decision.creates_pods and said(decision, "ServicesReady")[:2] == ("True", "ServicesHealthy")
    assert service_of(decision).ready_time == ago(0) == service_of(decision).start_time


def test_a_gang_whose_first_pods_are_there_is_made_whole():
    """Half a gang holds accelerators for nothing."""
    two = "workerGroups=[{name: train, replicas: 2}]"
    seen = replace(begun(model(is_ready=False), overrides=(JUDGE, two), services=(status(),)), pods=(pod(0),))
    assert decide(seen).creates_pods


def test_a_model_that_ends_is_made_again_at_once_and_the_gang_goes_on():
    decision = decide(training(broken(1, "CUDA is gone"), services=(status(),)))
    assert (decision.status.phase, decision.status.restarts) == ("Running", 0)
    assert decision.starts_services == ("judge",)
    assert decision.deletions == (Deletion("small-judge-r1", "uid-small-judge-r1", 2),)
    service = service_of(decision)
    assert (service.start, service.failures, service.futile_starts, service.start_time) == (2, 1, 0, None)
    message = "service judge: it ended with exit code 1: CUDA is gone; start 2 follows"
    assert said(decision, "ServicesReady") == ("False", "ServiceFailed", message)


def test_its_last_words_stay_until_the_next_is_healthy():
    words = {"failures": 1, "message": "it ended with exit code 1: no"}
    seen = training(model(2, is_ready=False), services=(status(2, ready=False, ready_time=None, **words),))
    assert said(decide(seen), "ServicesReady")[1:] == (
        "ServiceFailed",
        "service judge: it ended with exit code 1: no; start 2 is under way",
    )
    decision = decide(replace(seen, service_pods=(model(2),)))
    assert said(decision, "ServicesReady")[:2] == ("True", "ServicesHealthy")
    assert (service_of(decision).message, service_of(decision).failures) == ("", 1)


def test_one_that_was_never_healthy_pauses_longer_each_time():
    fresh = {"ready": False, "ready_time": None, "message": "x", "failures": 1}
    seen = training(broken(75, start=3), services=(status(3, futile_starts=1, **fresh),))
    service = service_of(decide(seen))
    # the second in a row: 10 s, shortened by a quarter at this chance, and rounded up
    assert (service.futile_starts, service.next_start_time) == (2, ago(-8.5))
    waits = replace(seen, service_pods=()).with_status(services=(service,))
    decision = decide(waits)
    assert decision.starts_services == () and decision.look_again_seconds == pytest.approx(8.0)
    assert "start 4 not before" in said(decision, "ServicesReady")[2]
    assert decide(replace(waits, now=NOW + 9)).starts_services == ("judge",)


@pytest.mark.parametrize(
    ("gone", "words"),
    [
        (model(is_ready=False, ends_at=NOW + 5, disruption="EvictionByEvictionAPI"), "EvictionByEvictionAPI"),
        (broken(137, disruption="PreemptionByScheduler"), "PreemptionByScheduler"),
        (broken(143, ends_at=NOW + 5), "PodDeleted"),
        (model(is_out_of_sight=True), "PodDeleted"),
        (None, "PodDeleted"),
    ],
)
def test_what_is_done_to_its_pod_is_not_its_failure(gone, words):
    seen = training(*([gone] if gone else []), services=(status(),))
    service = service_of(decide(seen))
    assert (service.start, service.failures, service.message) == (2, 0, f"its pod went ({words})")


def test_of_a_pod_that_ended_and_went_between_two_looks_the_last_state_counts():
    seen = replace(training(services=(status(),)), departed={"small-judge-r1": broken(70, "ValueError: no head")})
    service = service_of(decide(seen))
    assert (service.failures, service.message) == (1, "it ended with exit code 70: ValueError: no head")


def test_another_is_made_when_the_one_before_cannot_run_any_more():
    leaving = model(ends_at=NOW + 5)
    decision = decide(training(leaving, services=(status(),)))
    assert decision.starts_services == () and service_of(decision).start == 2
    assert decide(training(services=decision.status.services)).starts_services == ("judge",)


def test_a_model_that_cannot_be_served_ends_the_job_with_its_last_words():
    words = "InvalidJob: service \"judge\": no module 'mine'"
    decision = decide(begun(broken(64, words), services=(status(ready=False, ready_time=None),)))
    assert decision.status.phase == "Failed" and decision.queue is QueueAction.FINISH
    _, reason, message = said(decision, "Failed")
    assert reason == Reason.SERVICE_FAILED
    assert message == f"service judge: it ended with exit code 64: {words} (exit code 64: the job is invalid)"
    assert said(decision, "ServicesReady") == ("False", "ServiceFailed", f"{message}; no other start follows")
    assert decision.deletions == (), "its pod has logs"


def test_a_model_ends_as_often_as_a_gang_may():
    seen = training(broken(1, start=4), services=(status(4, failures=2),))
    assert decide(seen).status.phase == "Running"
    seen = training(broken(1, start=4), services=(status(4, failures=3),))  # maxRestarts
    decision = decide(seen)
    assert decision.status.phase == "Failed"
    assert "all 3 restarts of failurePolicy are used up" in said(decision, "Failed")[2]


def test_a_model_that_no_start_would_help_is_not_started_while_the_gang_ends():
    """The attempt was given up before: the next one ends the job."""
    stopped = status(2, start_time=None, ready=False, ready_time=None, stopped=True, message="no")
    seen = training(services=(stopped,), phase="Restarting")
    assert decide(seen).starts_services == ()
    assert decide(training(services=(stopped,))).status.phase == "Failed"


def test_a_gang_that_restarts_finds_its_models_there():
    seen = training(model(), services=(status(),), phase="Restarting", next_attempt_time=ago(-20))
    decision = decide(replace(seen, pods=()))
    assert decision.status.phase == "Pending" and decision.deletions == () == decision.starts_services
    assert said(decision, "ServicesReady")[:2] == ("True", "ServicesHealthy")
    again = replace(seen, pods=(), now=NOW + 21).with_status(phase="Pending")
    assert decide(again).creates_pods


def test_a_model_is_made_again_in_the_pause_between_two_attempts():
    seen = training(broken(), services=(status(),), phase="Pending", next_attempt_time=ago(-20))
    assert decide(replace(seen, pods=())).starts_services == ("judge",)


def test_a_suspended_job_gives_its_models_back_after_the_gang():
    suspended = (JUDGE, "suspend=true")
    seen = replace(alive(pod(0), overrides=suspended, services=(status(),)), service_pods=(model(),))
    decision = decide(seen)
    assert decision.status.phase == "Suspending"
    assert [deletion.name for deletion in decision.deletions] == ["small-train-0-a1"], "its last step may still ask"
    assert said(decision, "ServicesReady")[0] == "True"

    after = replace(seen, pods=()).with_status(phase="Suspending")
    decision = decide(after)
    assert (decision.status.phase, decision.queue) == ("Suspending", QueueAction.NONE)
    assert decision.deletions == (Deletion("small-judge-r1", "uid-small-judge-r1", 2),)
    service = service_of(decision)
    assert (service.start, service.start_time, service.ready) == (2, None, False)

    given_up = after.with_status(services=decision.status.services)
    over = replace(given_up, service_pods=(broken(143, ends_at=NOW + 2, grace_seconds=2),))
    assert decide(over).status.phase == "Suspending", "it is still there, though nothing of it runs"
    decision = decide(replace(given_up, service_pods=()))
    assert (decision.status.phase, decision.queue) == ("Suspended", QueueAction.LEAVE)
    assert said(decision, "ServicesReady")[:2] == ("False", "ServicesStopped")


@pytest.mark.parametrize("phase", ["Pending", "Suspended"])
def test_a_job_with_a_model_that_may_run_is_not_suspended_yet(phase):
    seen = replace(pending(JUDGE, "suspend=true", phase=phase, attempt=1), service_pods=(model(),))
    decision = decide(seen)
    assert decision.status.phase == "Suspending" and [deletion.name for deletion in decision.deletions] == [
        "small-judge-r1"
    ]


def test_quota_goes_back_when_no_model_holds_it():
    paused = {"phase": "Pending", "attempt": 1, "next_attempt_time": ago(-20), "services": (status(),)}
    seen = replace(pending(JUDGE, **paused), admission=EVICTED, has_queue=True, service_pods=(model(),))
    decision = decide(seen)
    assert decision.queue is QueueAction.NONE and [deletion.name for deletion in decision.deletions] == [
        "small-judge-r1"
    ]
    assert decide(replace(seen, service_pods=())).queue is QueueAction.RELEASE


def test_a_job_that_waits_for_quota_has_no_models():
    seen = replace(pending(JUDGE), admission=WAITING, has_queue=True)
    decision = decide(seen)
    assert decision.starts_services == () and said(decision, "ServicesReady")[1] == "ServicesStopped"


def test_a_refused_job_gets_no_model_and_keeps_none():
    refusal = Refusal(Reason.STORAGE_CLAIM_MISSING, "no claim")
    paused = {"phase": "Pending", "attempt": 1, "next_attempt_time": ago(-20), "services": (status(),)}
    seen = replace(pending(JUDGE, **paused), refusal=refusal, service_pods=(model(),))
    assert [deletion.name for deletion in decide(seen).deletions] == ["small-judge-r1"]
    assert decide(replace(training(services=(status(),)), refusal=refusal)).starts_services == ()


def test_nothing_is_made_where_it_is_not_known_where_it_may_run():
    unplaceable = Admission(AdmissionState.ADMITTED, unplaceable="cannot read ResourceFlavor spot")
    assert decide(replace(begun(), admission=unplaceable)).starts_services == ()


def test_the_end_of_a_job_is_that_of_its_models():
    ended = Termination("worker", 0, "Completed", "")
    seen = training(model(), services=(status(),))
    decision = decide(replace(seen, pods=(pod(0, is_ready=False, is_over=True, ended=ended),)))
    assert decision.status.phase == "Succeeded"
    assert [deletion.name for deletion in decision.deletions] == ["small-judge-r1"]


def test_strays_of_other_starts_go_in_whatever_phase():
    seen = training(model(1), model(3), model(2), services=(status(2),))
    decision = decide(seen)
    assert sorted(deletion.name for deletion in decision.deletions) == ["small-judge-r1", "small-judge-r3"]
    assert service_of(decision).start == 2 and said(decision, "ServicesReady")[0] == "True"


def test_a_pod_that_does_not_go_is_deleted_by_force():
    """Its node is dead: nothing else ever lets the next one be made."""
    leaving = model(1, ends_at=NOW - 200)
    decision = decide(training(leaving, services=(status(2, start_time=None, ready=False, ready_time=None),)))
    assert decision.deletions == (Deletion("small-judge-r1", "uid-small-judge-r1", 0),)
    assert said(decision, "Degraded")[1] == "PodStuckTerminating"


def test_a_lost_status_is_read_off_the_pods():
    decision = decide(training(model(7)))
    assert (service_of(decision).start, decision.deletions) == (7, ())


def test_the_condition_says_why_a_model_does_not_start():
    stuck = Stuck("service", Reason.IMAGE_PULL_FAILED, "ErrImagePull, image x: not found")
    decision = decide(begun(model(is_ready=False, stuck=stuck)))
    assert said(decision, "ServicesReady") == (
        "False", "ImagePullFailed", "pod small-judge-r1: ErrImagePull, image x: not found",
    )  # fmt: skip
    decision = decide(begun(model(is_ready=False, node="", unschedulable="0/2 nodes: insufficient cpu")))
    assert said(decision, "ServicesReady")[2] == "not healthy yet: judge (0/2 nodes: insufficient cpu)"


def test_a_model_that_stopped_answering_is_distinguished_from_one_that_starts():
    seen = training(model(is_ready=False), services=(status(),))
    decision = decide(seen)
    assert said(decision, "ServicesReady") == ("False", "ServiceUnhealthy", "answered, and not now: judge")
    assert decision.starts_services == () == decision.deletions, "Ray Serve starts it again in its pod"
    service = service_of(decision)
    assert (service.ready, service.ready_time) == (False, ago(90))
    back = replace(seen, service_pods=(model(),)).with_status(services=(service,))
    assert said(decide(back), "ServicesReady")[:2] == ("True", "ServicesHealthy")


def ray_service(start=1, **facts):
    """What KubeRay serves a model by."""
    return replace(model(start, is_ready=False, node=""), kind="RayService", name=f"small-judge-x-r{start}", **facts)


def test_what_ray_serve_says_of_a_model_is_in_the_condition():
    seen = training(ray_service(says="UNHEALTHY: CUDA is gone"), services=(status(),))
    assert said(decide(seen), "ServicesReady")[2] == "answered, and not now: judge (UNHEALTHY: CUDA is gone)"
    seen = begun(ray_service(stuck=Stuck("service", Reason.IMAGE_PULL_FAILED, "not found")))
    assert said(decide(seen), "ServicesReady")[2] == "RayService small-judge-x-r1: not found"


@pytest.mark.parametrize(
    ("seconds", "facts", "is_over"),
    [
        (305.0, {}, False),  # 300 s to start, and then 5
        (306.0, {}, True),
        (306.0, {"unschedulable": "insufficient cpu"}, False),
        (306.0, {"stuck": Stuck("service", Reason.IMAGE_PULL_FAILED, "not found")}, False),
    ],
)
def test_kube_ray_waits_for_ever_so_a_model_that_is_late_ends(seconds, facts, is_over):
    late = "services=[{name: judge, run: 'mine:app', healthSeconds: 5}]"
    waits = status(start_time=ago(seconds), ready=False, ready_time=None)
    decision = decide(begun(ray_service(says="DEPLOYING", **facts), overrides=(late,), services=(waits,)))
    assert service_of(decision).start == 1 + is_over
    if is_over:
        (deletion,) = decision.deletions
        assert (deletion.name, deletion.kind) == ("small-judge-x-r1", "RayService")
        assert "exit code 75: not healthy after healthSeconds 5: DEPLOYING" in service_of(decision).message


def test_one_that_answered_once_is_kube_rays_to_start_again():
    answered = status(start_time=ago(9999), ready_time=ago(9000))
    assert service_of(decide(training(ray_service(), services=(answered,)))).start == 1


def test_an_application_that_ran_once_may_run_again():
    failed = Termination("", 64, "DEPLOY_FAILED", "no such head")
    decision = decide(training(ray_service(ended=failed), services=(status(),)))
    service = service_of(decision)
    assert (decision.status.phase, service.start, service.stopped) == ("Running", 2, False)
    fresh = status(ready=False, ready_time=None)
    assert decide(begun(ray_service(ended=failed), services=(fresh,))).status.phase == "Failed"


def test_models_that_are_not_healthy_in_time_fail_the_job_by_name():
    late = {"pending_time": ago(8000)}
    seen = pending(JUDGE, phase="Starting", attempt=1, services=(status(ready=False, ready_time=None),), **late)
    _, reason, message = said(decide(replace(seen, service_pods=(model(is_ready=False),))), "Failed")
    assert reason == "PendingTimeout" and message.endswith("7200 s: judge")


def test_an_attempt_whose_model_is_refused_is_given_up():
    seen = replace(begun(), obstacle=Obstacle(Reason.QUOTA_EXCEEDED, "exceeded quota"))
    decision = decide(seen)
    assert decision.status.phase == "Pending" and decision.status.next_attempt_time is not None


def test_a_job_without_services_says_nothing_of_them():
    decision = decide(alive(pod(0)))
    assert decision.status.services == () and "ServicesReady" not in decision.claims
