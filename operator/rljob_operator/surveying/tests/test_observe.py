from __future__ import annotations

from typing import Any

import pytest

from rljob_operator.states.facts import Ended, PodFacts
from rljob_operator.surveying.observe import pod_facts
from rljob_operator.tests.world import disrupted, ended, running


def facts(status: dict[str, Any], **metadata: Any) -> PodFacts:
    labels = {"rljob.dev/group": "train", "rljob.dev/attempt": "3"}
    about = {"name": "small-train-0-a3", "uid": "u", "labels": labels, **metadata}
    return pod_facts({"metadata": about, "spec": {"nodeName": "node1"}, "status": status})


def test_pod_that_runs() -> None:
    found = facts(running())
    assert (found.group, found.attempt, found.node, found.address) == ("train", 3, "node1", "10.0.0.1")
    assert found.is_ready and not found.is_cut_off and not found.is_over and found.ended is None


def test_pod_that_nobody_has_looked_at_yet() -> None:
    found = pod_facts({"metadata": {"name": "a", "uid": "u"}, "spec": {}})
    assert found == PodFacts(name="a", uid="u", group="", attempt=0)


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
    assert facts(ended(70, message)).ended == Ended("worker", 70, "Error", words, step)


def test_done_says_nothing_more() -> None:
    assert facts(ended(0)).is_done


def test_container_of_the_users_that_fails_before_the_worker_starts() -> None:
    terminated = {"exitCode": 3, "reason": "Error", "message": "no network"}
    status = {"phase": "Failed", "initContainerStatuses": [{"name": "fetch", "state": {"terminated": terminated}}]}
    assert facts(status).ended == Ended("fetch", 3, "Error", "no network")


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
