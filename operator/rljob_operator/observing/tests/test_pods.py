"""Tests of what is read of the status of a pod."""

from __future__ import annotations

from typing import Any

import pytest

from rljob_operator.observing.pods import pod_facts
from rljob_operator.states.situation.conditions import Reason
from rljob_operator.states.situation.facts import PodFacts, Stuck, Termination
from rljob_operator.tests.world import disrupted, ended, running


def facts(status: dict[str, Any], **metadata: Any) -> PodFacts:
    labels = {"rljob.dev/group": "train", "rljob.dev/attempt": "3"}
    about = {"name": "small-train-0-a3", "uid": "u", "labels": labels, **metadata}
    return pod_facts({"metadata": about, "spec": {"nodeName": "node1"}, "status": status})


def test_pod_that_runs() -> None:
    result = facts(running())
    assert (result.group, result.attempt, result.node, result.address) == ("train", 3, "node1", "10.0.0.1")
    assert result.is_ready and not result.is_cut_off and not result.is_over and result.ended is None


def test_pod_that_nobody_has_looked_at_yet() -> None:
    result = pod_facts({"metadata": {"name": "a", "uid": "u"}, "spec": {}})
    assert result == PodFacts(name="a", uid="u", group="", attempt=0)


@pytest.mark.parametrize(
    ("message", "words", "step"),
    [
        ('{"code": 70, "cause": "ValueError: no", "worker": "train-0-0", "step": 4}', "train-0-0: ValueError: no", 4),
        ('{"code": 70, "cause": "ValueError: no", "worker": ""}', "ValueError: no", None),
        ("Traceback ...", "Traceback ...", None),
        ("", "exit code 70: rljob or the user's code has a bug", None),
        ("[1, 2]", "[1, 2]", None),
    ],
)
def test_last_words(message: str, words: str, step: int | None) -> None:
    assert facts(ended(70, message)).ended == Termination("worker", 70, "Error", words, step)


def test_done_says_nothing_more() -> None:
    assert facts(ended(0)).is_done


def test_container_of_the_users_that_fails_before_the_worker_starts() -> None:
    terminated = {"exitCode": 3, "reason": "Error", "message": "no network"}
    status = {"phase": "Failed", "initContainerStatuses": [{"name": "fetch", "state": {"terminated": terminated}}]}
    assert facts(status).ended == Termination("fetch", 3, "Error", "no network")


@pytest.mark.parametrize(
    ("status", "disruption"),
    [
        (disrupted(ended(143), "PreemptionByScheduler"), "PreemptionByScheduler"),
        ({"phase": "Failed", "reason": "NodeAffinity"}, "NodeAffinity"),
        ({"phase": "Failed", "reason": "Evicted"}, ""),
        (ended(137), ""),
    ],
)
def test_what_was_done_from_outside(status: dict[str, Any], disruption: str) -> None:
    assert facts(status).disruption == disruption


def test_node_that_no_longer_speaks_for_its_pod() -> None:
    status = running()
    status["conditions"][-1] = {"type": "Ready", "status": "False"}
    assert facts(status).is_cut_off
    assert not facts(ended(0)).is_cut_off


def test_everything_that_is_known_of_a_pod() -> None:
    terminated = {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2027-01-15T07:59:00Z"}
    status = running()
    status["initContainerStatuses"][0] |= {"restartCount": 2, "lastState": {"terminated": terminated}}
    result = facts(
        status,
        annotations={"rljob.dev/plan-hash": "abc"},
        deletionTimestamp="2027-01-15T08:00:00Z",
        deletionGracePeriodSeconds=30,
        finalizers=["example.com/held"],
    )
    assert result == PodFacts(
        name="small-train-0-a3",
        uid="u",
        group="train",
        attempt=3,
        plan_hash="abc",
        node="node1",
        address="10.0.0.1",
        is_ready=True,
        ends_at=1_800_000_000.0,
        grace_seconds=30,
        finalizers=("example.com/held",),
        num_buffer_restarts=2,
        buffer_ended=Termination(
            "data-buffer", 137, "OOMKilled", "killed by signal 9 (often out of memory)", at=1_799_999_940.0
        ),
    )


def test_counts_of_a_container_have_32_bits() -> None:
    """A group adds them up, and the sum must still fit into a status."""
    status = ended(2**63 - 1)
    status["initContainerStatuses"][0]["restartCount"] = 10**25
    result = facts(status)
    assert (result.num_buffer_restarts, result.ended and result.ended.exit_code) == (2**31 - 1, 2**31 - 1)


def test_the_pod_of_a_service_is_known_by_its_name() -> None:
    result = facts(running(), name="small-my.model-r2", labels={})
    assert (result.service, result.start, result.group, result.attempt) == ("my_model", 2, "", 0)


@pytest.mark.parametrize(
    ("said", "seconds"),
    [("20", 20), ("0", 1), ("-5", None), ("9" * 400, None), ("\u0663", None), (7, None), (None, None)],
)
def test_grace_of_a_deleted_jobs_pod_is_what_its_annotation_says(said: Any, seconds: int | None) -> None:
    pod = facts(running(), annotations={"rljob.dev/deletion-grace-seconds": said})
    assert pod.deletion_grace_seconds == seconds


@pytest.mark.parametrize(("grace", "seconds"), [(None, 0), (0, 0), (5, 5)])
def test_grace_is_that_of_a_deletion(grace: int | None, seconds: int) -> None:
    deleted = facts(running(), deletionTimestamp="2027-01-15T08:00:00Z", deletionGracePeriodSeconds=grace)
    assert (deleted.ends_at, deleted.grace_seconds) == (1_800_000_000.0, seconds)


def container(name: str, code: int, **terminated: Any) -> dict[str, Any]:
    return {"name": name, "state": {"terminated": {"exitCode": code, "reason": "Error", **terminated}}}


@pytest.mark.parametrize(
    ("status", "ended"),
    [
        ({"phase": "Succeeded"}, Termination("worker", 0, "Completed", "")),
        ({"phase": "Running"}, None),
        ({"phase": "Failed"}, Termination("", 75, "Failed", "")),
        ({"phase": "Failed", "reason": "Evicted", "message": "disk"}, Termination("", 75, "Evicted", "disk")),
        (
            {
                "phase": "Failed",
                "initContainerStatuses": [container("fetch", 0)],
                "containerStatuses": [{"name": "logger", "state": {"running": {}}}, container("proxy", 1)],
            },
            Termination("proxy", 1, "Error", "exit code 1: rljob or the user's code has a bug"),
        ),
        (
            {"phase": "Running", "containerStatuses": [container("logger", 1), container("worker", 0)]},
            Termination("worker", 0, "Error", ""),
        ),
        (
            {"phase": "Failed", "containerStatuses": [container("worker", 65), container("logger", 1)]},
            Termination("worker", 65, "Error", "exit code 65: the data cannot be used"),
        ),
    ],
    ids=["done", "runs", "unknown", "evicted", "another container", "a worker that is done", "the worker first"],
)
def test_how_a_pod_ended(status: dict[str, Any], ended: Termination | None) -> None:
    assert facts(status).ended == ended


def test_an_end_of_which_kubernetes_says_little() -> None:
    silent = {"name": "worker", "state": {"terminated": {"message": None, "finishedAt": None, "startedAt": "x"}}}
    assert facts({"phase": "Running", "containerStatuses": [silent]}).ended == Termination("worker", 0, "", "")


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("  a line \n", "a line"),
        ('{"cause": "", "worker": "train-0-0"}', "exit code 70: rljob or the user's code has a bug"),
        ('{"worker": "train-0-0"}', "exit code 70: rljob or the user's code has a bug"),
        ('{"cause": 5}', "exit code 70: rljob or the user's code has a bug"),
        ('{"cause": ["a"], "worker": {}}', "exit code 70: rljob or the user's code has a bug"),
        ("[" * 4000, "[" * 4000),
        ('{"cause": "cannot score \'\\ud83d\'"}', "cannot score '\\ud83d'"),
        ("half an emoji: \ud83d", "half an emoji: \\ud83d"),
        ('{"cause": "a whole one: \\ud83d\\ude00"}', "a whole one: \U0001f600"),
        ('{"cause": "' + "x" * 9000 + '"}', "x" * 4092 + " …"),
        (
            '{"cause": "a bell\\u0007, a line\\n and a \\u001b[31m colour"}',
            "a bell\ufffd, a line\n and a \ufffd[31m colour",
        ),
    ],
)
def test_words_that_are_not_quite_as_agreed(message: str, words: str) -> None:
    result = facts(ended(70, message)).ended
    assert result is not None and result.message == words


@pytest.mark.parametrize(
    ("words", "step", "checkpoint"),
    [
        ('{"step": 4, "checkpoint": 2}', 4, 2),
        ('{"step": 0, "checkpoint": 0}', 0, 0),
        ('{"step": true, "checkpoint": "2"}', None, None),
        (f'{{"step": {10**25}, "checkpoint": -1}}', 2**63 - 1, 0),
        (f'{{"step": {"9" * 9000}, "checkpoint": 1e999}}', None, None),
        ("{}", None, None),
    ],
)
def test_steps_are_whole_numbers(words: str, step: int | None, checkpoint: int | None) -> None:
    result = facts(ended(0, words)).ended
    assert result is not None and (result.step, result.checkpoint) == (step, checkpoint)


IMAGE = ("ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError")
CONFIG = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        *((word, Reason.IMAGE_PULL_FAILED) for word in IMAGE),
        *((word, Reason.CONTAINER_CONFIG_INVALID) for word in CONFIG),
    ],
)
@pytest.mark.parametrize("where", ["initContainerStatuses", "containerStatuses"])
def test_a_container_that_seldom_starts_by_itself(where: str, word: str, reason: Reason) -> None:
    waiting = {"waiting": {"reason": word, "message": "not found"}}
    stuck = [{"name": "other", "state": {"running": {}}}, {"name": "worker", "image": "x:1", "state": waiting}]
    assert facts({"phase": "Pending", where: stuck}).stuck == Stuck("worker", reason, f"{word}, image x:1: not found")


def test_a_container_that_says_less_and_one_that_merely_waits() -> None:
    silent = {"name": "worker", "state": {"waiting": {"reason": "ErrImagePull", "message": None}}}
    stuck = facts({"phase": "Pending", "containerStatuses": [silent]}).stuck
    assert stuck is not None and stuck.message == "ErrImagePull, image : "
    waits = {"name": "worker", "state": {"waiting": {"reason": "PodInitializing"}}}
    assert facts({"phase": "Pending", "containerStatuses": [waits, {"name": "x", "state": None}]}).stuck is None


@pytest.mark.parametrize(
    "reason",
    [
        *("NodeLost", "NodeShutdown", "Shutdown", "Terminated", "Preempting", "NodeAffinity", "NodePorts", "OutOfcpu"),
        *("OutOfmemory", "OutOfpods", "OutOfephemeral-storage", "UnexpectedAdmissionError", "TopologyAffinityError"),
    ],
)
def test_what_a_kubelet_refuses_is_the_nodes(reason: str) -> None:
    assert facts({"phase": "Failed", "reason": reason}).disruption == reason
    assert facts({"phase": "Running", "reason": reason}).disruption == ""


@pytest.mark.parametrize(
    ("target", "disruption"),
    [
        ({"status": "True", "reason": "EvictionByEvictionAPI"}, "EvictionByEvictionAPI"),
        ({"status": "True"}, "DisruptionTarget"),
        ({"status": "False", "reason": "EvictionByEvictionAPI"}, ""),
    ],
)
def test_what_a_condition_says_is_done_to_a_pod(target: dict[str, str], disruption: str) -> None:
    assert facts({"phase": "Running", "conditions": [{"type": "DisruptionTarget", **target}]}).disruption == disruption


@pytest.mark.parametrize(
    ("condition", "why"),
    [
        ({"status": "False", "reason": "Unschedulable", "message": "no node has 8 GPUs"}, "no node has 8 GPUs"),
        ({"status": "False", "reason": "SchedulingGated"}, "SchedulingGated"),
        ({"status": "False"}, ""),
        ({"status": "True", "message": "no node has 8 GPUs"}, ""),
    ],
)
def test_why_a_pod_has_no_node(condition: dict[str, str], why: str) -> None:
    conditions = [{"type": "PodScheduled", **condition}]
    assert facts({"phase": "Pending", "conditions": conditions}).unschedulable == why


@pytest.mark.parametrize(
    ("containers", "ready", "is_cut_off"),
    [("True", "False", True), ("True", "True", False), ("False", "False", False), ("True", "Unknown", True)],
)
def test_a_pod_is_cut_off_where_only_its_node_no_longer_says_so(containers: str, ready: str, is_cut_off: bool) -> None:
    conditions = [{"type": "ContainersReady", "status": containers}, {"type": "Ready", "status": ready}]
    result = facts({"phase": "Running", "conditions": conditions})
    assert (result.is_cut_off, result.is_ready) == (is_cut_off, ready == "True")


@pytest.mark.parametrize(
    ("phase", "is_over"), [("Succeeded", True), ("Failed", True), ("Running", False), ("Pending", False)]
)
def test_a_pod_is_over_by_its_phase(phase: str, is_over: bool) -> None:
    assert facts({"phase": phase}).is_over is is_over
