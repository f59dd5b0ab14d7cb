"""What becomes of the pods of an elastic group, and that the gang goes on."""

from dataclasses import replace

import pytest

from rljob_api.v1alpha1.status import SuspectNode
from rljob_operator.states import decide
from rljob_operator.states.by_spec import decide_by_spec
from rljob_operator.states.situation.conditions import Reason
from rljob_operator.states.situation.facts import ProgressAnswer, Stuck
from rljob_operator.states.situation.situation import Obstacle, QueueAction
from rljob_operator.states.tests.builders import EVICTED, NOW, ago, dead, pending, pod, said
from rljob_operator.states.tests.guests import ELASTIC, deleted, generating, guest, known, lost, starts

MAX = ELASTIC[:2]


def kept(decision):
    return {item.index: item for item in decision.status.generator_pods}


def test_guests_begin_once_the_gang_has_its_nodes():
    assert starts(decide(pending(*ELASTIC))) == []
    unplaced = generating(gang=(pod(0, node="", is_ready=False),), ready_time=None, phase="Starting")
    assert starts(decide(unplaced)) == []
    placed = generating(gang=(pod(0, is_ready=False),), ready_time=None, phase="Starting")
    decision = decide(placed)
    assert starts(decision) == [(0, 1), (1, 1)] and not decision.creates_pods
    assert said(decision, "GeneratorsReady") == ("False", "GeneratorsStarting", "0 of 2 generators are ready")


def test_the_gang_runs_without_a_guest():
    decision = decide(generating(ready_time=None, phase="Starting"))
    assert decision.status.phase == "Running" and said(decision, "Ready")[:2] == ("True", "AllPodsReady")
    assert decision.status.ready == "1/1"


def test_guests_that_are_ready_are_counted():
    decision = decide(generating(guest(0), guest(1)))
    status = decision.status
    assert (status.generators, status.generators_wanted, status.generators_lost) == (2, 2, 0)
    assert status.generator_selector == "rljob.dev/job=small,rljob.dev/group=rollout"
    assert said(decision, "GeneratorsReady") == ("True", "AllGeneratorsReady", "2 of 2 generators are ready")
    assert starts(decision) == [] and decision.deletions == ()
    groups = {group.name: (group.desired, group.ready) for group in status.worker_groups}
    assert groups == {"train": (1, 1), "rollout": (2, 2)}


def test_without_a_number_there_are_as_many_as_may_be():
    decision = decide(replace(generating(), spec=pending(*MAX).spec))
    assert starts(decision) == [(0, 1), (1, 1), (2, 1), (3, 1)]


def test_scaling_up_makes_those_that_are_missing():
    decision = decide(generating(guest(0), guest(1), overrides=("generators=4",)))
    assert starts(decision) == [(2, 1), (3, 1)] and decision.deletions == ()


def test_scaling_down_takes_the_highest_numbers_and_gives_them_their_grace():
    decision = decide(generating(guest(0), guest(1), guest(2), guest(3)))
    assert deleted(decision) == {"small-rollout-2-a1-g1": 600, "small-rollout-3-a1-g1": 600}
    assert (decision.status.generators, decision.status.generators_lost) == (2, 0)
    going = decide(generating(guest(0), guest(1), guest(2, ends_at=NOW + 20)))
    assert going.deletions == () and going.status.generators_lost == 0


def test_a_guest_that_was_ready_and_is_lost_is_replaced_at_once():
    seen = generating(lost(), guest(1), generator_pods=(known(0), known(1)))
    decision = decide(seen)
    status = decision.status
    assert (status.phase, status.restarts, status.counted_restarts, status.generators_lost) == ("Running", 0, 0, 1)
    assert starts(decision) == [(0, 2)]
    assert deleted(decision) == {"small-rollout-0-a1-g1": 2}
    assert (kept(decision)[0].start, kept(decision)[0].ready, kept(decision)[0].next_start_time) == (2, False, None)
    message = "1 of 2 generators are ready; generator 0: it ended on node spot0 with exit code 137: killed; start 2"
    assert said(decision, "GeneratorsReady") == ("False", "GeneratorsLost", message)
    assert said(decision, "Degraded")[0] == "False"


def test_a_loss_is_counted_once():
    decision = decide(generating(lost(), guest(1), generator_pods=(known(0, start=2, ready=False), known(1))))
    assert decision.status.generators_lost == 0 and starts(decision) == [(0, 2)]


def test_one_that_was_never_ready_pauses_longer_each_time():
    item = known(0, start=3, ready=False, futile_starts=1)
    decision = decide(generating(lost(75, start=3), guest(1), generator_pods=(item,)))
    again = kept(decision)[0]
    # the second in a row: 10 s, shortened by a quarter at this chance, and rounded up
    assert (again.start, again.futile_starts, again.next_start_time) == (4, 2, ago(-8.5))
    assert starts(decision) == [] and decision.look_again_seconds == pytest.approx(8.0)
    waits = generating(guest(1), generator_pods=(again,))
    assert starts(decide(waits)) == []
    assert starts(decide(replace(waits, now=NOW + 9))) == [(0, 4)]


def test_a_pod_that_is_ready_again_ends_the_pauses():
    item = known(0, start=4, ready=False, futile_starts=3, message="it ended", next_start_time=ago(5))
    decision = decide(generating(guest(0, 4), guest(1), generator_pods=(item,)))
    assert kept(decision)[0] == known(0, start=4)
    assert said(decision, "GeneratorsReady")[0] == "True"


def test_a_guest_that_its_node_takes_away_keeps_its_grace_and_its_number_waits_for_its_end():
    going = guest(0, ends_at=NOW + 25, disruption="EvictionByEvictionAPI")
    decision = decide(generating(going, guest(1), generator_pods=(known(0), known(1))))
    assert decision.deletions == () and starts(decision) == []
    assert (decision.status.generators, decision.status.generators_lost) == (1, 1)
    assert "its pod on node spot0 was taken away (EvictionByEvictionAPI)" in said(decision, "GeneratorsReady")[2]
    gone = generating(guest(1), generator_pods=decision.status.generator_pods)
    assert starts(decide(gone)) == [(0, 2)]


def test_a_guest_that_does_not_go_is_deleted_by_force_and_the_others_go_on():
    stuck = guest(0, ends_at=NOW - 121)
    decision = decide(generating(stuck, guest(1), generator_pods=(known(0, start=2, ready=False),)))
    assert deleted(decision) == {"small-rollout-0-a1-g1": 0}
    assert decision.status.phase == "Running"


def test_a_guest_whose_data_buffer_ended_begins_again():
    decision = decide(generating(guest(0, num_buffer_restarts=1), guest(1), generator_pods=(known(0), known(1))))
    assert deleted(decision) == {"small-rollout-0-a1-g1": 2}
    assert kept(decision)[0].start == 2 and starts(decision) == []  # its worker may still run


def test_a_node_that_ends_guests_twice_is_avoided_for_a_while():
    one = decide(generating(lost(137, node="bad"), guest(1), generator_pods=(known(0), known(1))))
    assert [(item.name, item.failures) for item in one.status.suspect_nodes] == [("bad", 1)]
    first = SuspectNode(name="bad", failures=1, last_time=ago(60))
    both = generating(lost(137, node="bad"), lost(139, 1, node="bad"), suspect_nodes=(first,))
    assert [(item.name, item.failures) for item in decide(both).status.suspect_nodes] == [("bad", 3)]


@pytest.mark.parametrize("facts", [{"disruption": "PreemptionByScheduler"}, {"code": 75}])
def test_what_a_node_is_not_to_blame_for(facts):
    decision = decide(generating(lost(facts.get("code", 137), disruption=facts.get("disruption", "")), guest(1)))
    assert decision.status.suspect_nodes == () and decision.status.generators_lost == 1


@pytest.mark.parametrize(("code", "reason"), [(64, "InvalidJob"), (65, "BadData")])
def test_an_exit_code_that_every_guest_would_end_with_stops_the_job(code, reason):
    decision = decide(generating(lost(code, message="prompt 3 is no text"), guest(1)))
    assert decision.status.phase == "Failed"
    status, why, message = said(decision, "Failed")
    assert (status, why) == ("True", reason)
    assert message.startswith("generator 0, pod small-rollout-0-a1-g1: prompt 3 is no text (exit code")


@pytest.mark.parametrize("code", [1, 70, 74, 75, 76, 130, 137, 139])
def test_other_exit_codes_of_guests_never_stop_it(code):
    decision = decide(generating(lost(code), guest(1), overrides=("failurePolicy.maxRestarts=0",)))
    assert (decision.status.phase, decision.status.counted_restarts) == ("Running", 0)


def test_a_rule_of_the_failure_policy_may_stop_the_job_for_a_guest():
    rule = "failurePolicy.rules=[{onExitCodes: [3], action: Stop}]"
    decision = decide(generating(lost(3), overrides=(rule,)))
    assert said(decision, "Failed")[1] == "StoppedByRule"


def test_a_gang_without_a_guest_waits_until_the_deadline():
    decision = decide(generating(lost(), lost(index=1), generator_pods=(known(0), known(1))))
    assert decision.status.generators_absent_time == ago(0)
    status, reason, message = said(decision, "GeneratorsReady")
    assert (status, reason) == ("False", "NoGenerators")
    assert message.startswith(f"no generator is ready since {ago(0)}: training waits until {ago(-1800)}, ")
    waits = generating(generator_pods=decision.status.generator_pods, generators_absent_time=ago(1700))
    decision = decide(waits)
    assert decision.status.phase == "Running" and decision.look_again_seconds == pytest.approx(100)
    decision = decide(replace(waits, now=NOW + 100))
    assert said(decision, "Failed")[:2] == ("True", "GeneratorsTimeout")
    assert (
        "no generator was ready for rollout.generatorsDeadlineSeconds, 1800 s; generator 0"
        in said(decision, "Failed")[2]
    )


def test_the_clock_of_the_deadline_begins_anew():
    decision = decide(generating(guest(0), generators_absent_time=ago(1700)))
    assert decision.status.generators_absent_time is None
    starting = decide(generating(ready_time=None, phase="Starting", gang=(pod(0, is_ready=False),)))
    assert starting.status.generators_absent_time is None


def test_a_step_that_waits_for_guests_does_not_stall():
    standing = {"progress": {"step": 3, "last_step_time": ago(4000)}, "generators_absent_time": ago(100)}
    seen = generating(overrides=("lifecycle.stallSeconds=600",), ready_time=ago(5000), **standing)
    seen = replace(seen, progress=ProgressAnswer(phase="Running", attempt=1, step=3))
    assert said(decide(seen), "Degraded")[0] == "False"
    seen = replace(seen, guest_pods=(guest(0),))
    assert said(decide(seen), "Degraded")[1] == "Stalled"


def test_guests_go_with_their_attempt_and_the_next_one_does_not_wait_for_them():
    gang = (dead(75),)
    failed = {"last_failure": {"attempt": 1, "exit_code": 75, "cause": "PodFailed", "time": ago(9)}}
    decision = decide(generating(guest(0), guest(1), gang=gang, **failed))
    assert decision.status.phase == "Restarting" and decision.status.generators_lost == 0
    assert set(deleted(decision)) == {"small-train-0-a1", "small-rollout-0-a1-g1", "small-rollout-1-a1-g1"}
    assert said(decision, "GeneratorsReady")[1] == "GeneratorsStopped"
    assert (decision.status.generators, decision.status.generators_wanted) == (0, 0)
    ending = generating(guest(0, ends_at=NOW + 2), gang=(), phase="Restarting", ready_time=None)
    decision = decide(ending)
    assert (decision.status.phase, decision.status.attempt, decision.creates_pods) == ("Starting", 2, True)
    assert decision.status.generator_pods == ()


def test_a_number_waits_for_the_pod_of_the_attempt_before():
    old = guest(0, attempt=1, ends_at=NOW + 2)
    seen = generating(old, gang=(pod(0, attempt=2),), attempt=2)
    assert starts(decide(seen)) == [(1, 1)]


def test_guests_that_die_with_their_gang_are_not_lost():
    decision = decide(generating(lost(75), lost(75, 1), gang=(dead(75),), generator_pods=(known(0), known(1))))
    assert decision.status.generators_lost == 0 and starts(decision) == []


def test_a_job_is_suspended_when_its_guests_are_gone():
    seen = generating(guest(0), guest(1), overrides=("suspend=true",))
    decision = decide(seen)
    assert decision.status.phase == "Suspending"
    # the step before the checkpoint needs rows
    assert deleted(decision) == {"small-train-0-a1": 600}
    writing = generating(guest(0), gang=(pod(0, ends_at=NOW + 600),), overrides=("suspend=true",), phase="Suspending")
    assert deleted(decide(writing)) == {}
    assert deleted(decide(replace(writing, pods=()))) == {"small-rollout-0-a1-g1": 2}
    left = generating(guest(0, ends_at=NOW + 2), gang=(), overrides=("suspend=true",), phase="Suspending")
    assert decide(left).status.phase == "Suspending"
    assert decide(replace(left, guest_pods=())).status.phase == "Suspended"
    assert decide(left.with_status(phase="Suspended")).status.phase == "Suspending"


def test_a_queue_that_takes_the_quota_back_takes_the_guests_too():
    decision = decide(replace(generating(guest(0), guest(1)), admission=EVICTED, has_queue=True))
    assert set(deleted(decision)) == {"small-train-0-a1"}
    left = generating(guest(0), guest(1), gang=(), phase="Suspending", ready_time=None)
    assert len(deleted(decide(replace(left, admission=EVICTED, has_queue=True)))) == 2
    left = generating(guest(0, ends_at=NOW + 2), gang=(), phase="Suspending", ready_time=None)
    left = replace(left, admission=EVICTED, has_queue=True)
    assert decide(left).queue is QueueAction.NONE  # it still has accelerators
    assert decide(replace(left, guest_pods=())).queue is QueueAction.RELEASE


def test_guests_that_still_run_go_when_the_job_is_done():
    decision = decide(generating(guest(0), lost(0, 1), gang=(dead(0),)))
    assert decision.status.phase == "Succeeded"
    assert deleted(decision) == {"small-rollout-0-a1-g1": 2}  # the other has its logs
    everything = decide(generating(guest(0), lost(0, 1), gang=(dead(0),), overrides=("lifecycle.cleanPodPolicy=All",)))
    assert "small-rollout-1-a1-g1" in deleted(everything)


def test_a_guest_that_ends_well_near_the_end_has_nothing_left_to_do():
    # 10 steps, generation is at most 3 ahead of what is trained
    near = {"progress": {"step": 7}}
    decision = decide(generating(lost(0), lost(0, 1), generator_pods=(known(0), known(1)), **near))
    assert starts(decision) == [] and decision.status.generators_lost == 0
    assert decision.status.generators_absent_time is None
    early = decide(generating(lost(0), guest(1), generator_pods=(known(0), known(1)), progress={"step": 6}))
    assert starts(early) == [(0, 2)]


def test_what_keeps_guests_from_being_ready_is_said():
    stuck = guest(0, is_ready=False, stuck=Stuck("worker", Reason.IMAGE_PULL_FAILED, "ErrImagePull, image x"))
    unplaced = guest(1, is_ready=False, node="", unschedulable="0/3 nodes are free")
    seen = generating(stuck, unplaced, ready_time=None, phase="Starting")
    message = said(decide(seen), "GeneratorsReady")[2]
    assert "pod small-rollout-0-a1-g1: ErrImagePull, image x" in message and "0/3 nodes are free" in message


def test_a_pod_that_may_not_be_made_is_said_and_tried_again_later():
    seen = replace(generating(guest(0)), guests_refused="exceeded quota: gpus", are_guests_paused=True)
    decision = decide(seen)
    assert starts(decision) == [] and decision.status.phase == "Running"
    message = "1 of 2 generators are ready; no other can be made: exceeded quota: gpus"
    assert said(decision, "GeneratorsReady") == ("False", "GeneratorsRefused", message)
    assert starts(decide(replace(seen, are_guests_paused=False))) == [(1, 1)]


def test_a_status_that_was_lost_is_read_off_the_pods():
    decision = decide(generating(guest(0, start=5), guest(1)))
    assert starts(decision) == [] and kept(decision)[0].start == 5 and decision.deletions == ()


def test_a_job_that_cannot_be_looked_at_keeps_its_guests_until_it_ends():
    obstacle = Obstacle(Reason.CLUSTER_FAILS, "no")
    assert decide_by_spec(replace(generating(guest(0)), obstacle=obstacle)).deletions == ()
    ended = replace(generating(guest(0), overrides=("suspend=true",)), obstacle=obstacle)
    assert "small-rollout-0-a1-g1" in deleted(decide_by_spec(replace(ended, pods=())))


def test_a_job_without_an_elastic_group_says_nothing_of_generators():
    decision = decide(pending())
    assert decision.status.generator_selector is None
    assert all(item.type != "GeneratorsReady" for item in decision.status.conditions)
