"""What is remembered of a service's pods, start by start, and when the next is made."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rljob_operator.states import Situation, decide
from rljob_operator.states.situation.facts import PodFacts, Termination
from rljob_operator.states.situation.situation import QueueAction
from rljob_operator.states.tests.builders import EVICTED, NOW, ago, alive, pending, pod, said
from rljob_operator.states.tests.services import JUDGE, TWO, begun, broken, model, service_of, status, training

NEXT = status(2, start_time=None, ready=False, ready_time=None)
"""Of a service whose second pod is to be made."""


def training_beside_two(*models: PodFacts) -> Situation:
    """A gang that runs beside two models, of which the first starts stand."""
    services = (status(), status(service="my_model"))
    return replace(alive(pod(0), overrides=(TWO,), services=services), service_pods=models)


def test_what_is_written_of_a_pod_that_is_seen_for_the_first_time() -> None:
    known = status(3, start_time=None, ready=False, ready_time=None, failures=2, futile_starts=2, message="no")
    seen = service_of(decide(training(model(3, is_ready=False), services=(known,))))
    assert seen == known.model_copy(update={"start_time": ago(0)})
    ready = service_of(decide(training(model(3), services=(known,))))
    forgotten = {"futile_starts": 0, "message": ""}
    assert ready == known.model_copy(update={"start_time": ago(0), "ready": True, "ready_time": ago(0), **forgotten}), (
        "failures of a job are counted over all its starts"
    )


def test_times_of_a_pod_stay_while_it_does() -> None:
    assert service_of(decide(training(model(), services=(status(),)))) == status()
    unready = service_of(decide(training(model(is_ready=False), services=(status(),))))
    assert unready == status(ready=False), "its next end is not that of a pod that was never ready"


@pytest.mark.parametrize(
    "gone",
    [replace(broken(1), is_over=False), model(is_ready=False, is_over=True), model(ends_at=NOW + 5)],
    ids=["ended", "over", "leaving"],
)
def test_a_pod_that_does_not_come_back_is_followed_by_another(gone: PodFacts) -> None:
    assert service_of(decide(training(gone, services=(status(),)))).start == 2


def test_a_pod_that_was_not_made_yet_is_not_missed() -> None:
    assert service_of(decide(training(services=(NEXT,)))) == NEXT


def test_what_is_written_of_an_end() -> None:
    known = status(failures=1, futile_starts=3, next_start_time=ago(60))
    service = service_of(decide(training(broken(70, "no head"), services=(known,))))
    assert service == status(
        2,
        start_time=None,
        ready=False,
        ready_time=None,
        failures=2,
        message="it ended with exit code 70: no head",
    )


def test_a_service_has_no_good_end() -> None:
    service = service_of(decide(training(broken(0, "bye"), services=(status(),))))
    assert (service.start, service.failures, service.stopped) == (2, 1, False)
    assert service.message == "it ended with exit code 0: bye"


@pytest.mark.parametrize(("reason", "words"), [("OOMKilled", "OOMKilled"), ("", "no last words")])
def test_an_end_without_a_message_is_reported_as_far_as_it_is_known(reason: str, words: str) -> None:
    silent = replace(broken(137), ended=Termination("service", 137, reason, ""))
    assert service_of(decide(training(silent, services=(status(),)))).message == f"it ended with exit code 137: {words}"


def test_last_words_are_cut_where_the_api_takes_no_more() -> None:
    service = service_of(decide(training(broken(1, "x" * 3000), services=(status(),))))
    assert len(service.message) == 2048 and service.message.endswith("x")


def test_the_pause_after_many_futile_starts_is_five_minutes() -> None:
    known = status(9, ready=False, ready_time=None, futile_starts=8)
    service = service_of(decide(replace(training(broken(75, start=9), services=(known,)), chance=0.0)))
    # the ninth in a row: 300 s at most, by chance not shortened, and rounded up
    assert (service.futile_starts, service.next_start_time) == (9, ago(-301))


def test_a_pause_is_over_to_the_second() -> None:
    due = decide(training(services=(NEXT.model_copy(update={"next_start_time": ago(0)}),)))
    assert due.starts_services == ("judge",) and due.look_again_seconds == float("inf")
    early = decide(training(services=(NEXT.model_copy(update={"next_start_time": ago(-1)}),)))
    assert early.starts_services == () and early.look_again_seconds == 1.0


def test_what_no_start_would_help_is_not_waited_for() -> None:
    over = NEXT.model_copy(update={"next_start_time": ago(-5), "stopped": True, "message": "no"})
    decision = decide(training(services=(over,), phase="Restarting"))
    assert (decision.starts_services, decision.look_again_seconds) == ((), None)


def test_each_service_is_made_when_its_own_pod_is_gone() -> None:
    decision = decide(training_beside_two(broken(1), model(service="my_model", ends_at=NOW + 5)))
    assert decision.starts_services == ("judge",)
    message = "service judge: it ended with exit code 1: Error; start 2 follows"
    other = "service my_model: its pod went (PodDeleted); start 2 follows"
    assert said(decision, "ServicesReady") == ("False", "ServiceFailed", f"{message}; {other}")


def test_the_children_that_a_model_needs_are_kept_with_it() -> None:
    """Also in a pause, in which nobody else needs any."""
    paused = pending(JUDGE, phase="Pending", attempt=1, next_attempt_time=ago(-20), services=(NEXT,))
    assert decide(paused).keeps_children
    waits = paused.with_status(services=(NEXT.model_copy(update={"next_start_time": ago(-5)}),))
    assert not decide(waits).keeps_children


def test_a_lost_status_is_read_off_the_latest_pod_of_the_very_service() -> None:
    seen = training_beside_two(model(3), model(7), model(9, service="my_model")).with_status(services=())
    decision = decide(seen)
    assert [(service.name, service.start) for service in decision.status.services] == [("judge", 7), ("my_model", 9)]
    assert [deletion.name for deletion in decision.deletions] == ["small-judge-r3"]


def test_a_job_that_has_no_place_yet_gets_no_model() -> None:
    waiting = replace(pending(JUDGE), is_predecessor_ending=True)
    decision = decide(waiting)
    assert decision.starts_services == () and said(decision, "ServicesReady")[:2] == ("False", "ServicesStopped")


def test_models_of_an_attempt_that_ends_stay_where_the_queue_takes_its_quota_back() -> None:
    """The gang may still ask them; none is made anew."""
    seen = replace(training(model(), services=(status(),), phase="Restarting"), admission=EVICTED)
    decision = decide(seen)
    assert [deletion.name for deletion in decision.deletions] == ["small-train-0-a1"]
    assert service_of(decision) == status()
    ended = replace(seen, service_pods=(broken(1),))
    assert decide(ended).starts_services == ()


def test_what_is_given_up_begins_anew() -> None:
    suspended = (JUDGE, "suspend=true")
    known = status(4, failures=2, futile_starts=2, message="it ended with exit code 1: no")
    seen = replace(pending(*suspended, phase="Suspended", services=(known,)), service_pods=(model(4, is_ready=False),))
    decision = decide(seen)
    assert service_of(decision) == known.model_copy(
        update={"start": 5, "start_time": None, "ready": False, "ready_time": None, "futile_starts": 0}
    )
    assert said(decision, "ServicesReady")[1] == "ServicesStopped", "how the one before ended is not news then"


def test_one_that_was_never_made_keeps_its_number() -> None:
    seen = pending(JUDGE, "suspend=true", phase="Suspended", services=(NEXT,))
    assert service_of(decide(seen)) == NEXT


def test_strays_take_no_quota_away_from_a_job_that_holds_it() -> None:
    decision = decide(begun(model(1), model(2), services=(status(2),)))
    assert [deletion.name for deletion in decision.deletions] == ["small-judge-r1"]
    assert decision.queue is QueueAction.HOLD and decision.creates_pods


def test_pods_of_a_service_that_the_job_has_no_more_go_without_a_word() -> None:
    decision = decide(replace(alive(pod(0), overrides=()), service_pods=(model(),)))
    assert [deletion.name for deletion in decision.deletions] == ["small-judge-r1"]
    assert "ServicesReady" not in decision.claims and decision.status.services == ()


@pytest.mark.parametrize(("policy", "goes"), [("All", ["small-judge-r1"]), ("Running", [])])
def test_logs_of_models_stay_after_the_end_unless_all_pods_go(policy: str, goes: list[str]) -> None:
    ended = pod(0, is_ready=False, is_over=True, ended=Termination("worker", 0, "Completed", ""))
    overrides = (JUDGE, f"lifecycle={{cleanPodPolicy: {policy}}}")
    seen = replace(alive(ended, overrides=overrides, services=(status(),)), service_pods=(broken(1),))
    decision = decide(seen)
    assert decision.status.phase == "Succeeded"
    assert [deletion.name for deletion in decision.deletions if "judge" in deletion.name] == goes
