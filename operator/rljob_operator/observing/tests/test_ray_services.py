"""What is read off a RayService."""

from __future__ import annotations

from typing import Any

import pytest

from rljob_operator.observing.ray_services import ray_service_facts
from rljob_operator.states.situation.conditions import Reason
from rljob_operator.states.situation.facts import PodFacts, Termination
from rljob_operator.vocabulary.timestamps import timestamp

READY = [{"type": "Ready", "status": "True", "reason": "NonZeroServeEndpoints"}]
STARTS = [{"type": "Ready", "status": "False", "reason": "Initializing"}]


def application(status: str, message: str = "", of_deployment: str = "") -> dict[str, Any]:
    deployments = {"Answering": {"status": "UNHEALTHY", "message": of_deployment}}
    result = {"status": status, "message": message, "serveDeploymentStatuses": deployments}
    return {"applicationStatuses": {"my_judge": result, "another": {"status": "DEPLOY_FAILED"}}}


def facts(status: dict[str, Any], *pods: dict[str, Any], **metadata: Any) -> PodFacts:
    labels = {"rljob.dev/job": "small", "rljob.dev/service": "my_judge"}
    about = {"name": "small-my-judge-0123abcd-r3", "uid": "u", "labels": labels, **metadata}
    return ray_service_facts({"metadata": about, "status": status}, pods)


def test_one_that_kube_ray_has_not_seen_yet() -> None:
    assert facts({}) == PodFacts(
        name="small-my-judge-0123abcd-r3", uid="u", group="", attempt=0, service="my_judge", start=3, kind="RayService"
    )


@pytest.mark.parametrize(
    ("status", "is_ready"),
    [
        ({"conditions": READY, "activeServiceStatus": application("RUNNING")}, True),
        ({"serviceStatus": "Running", "activeServiceStatus": application("RUNNING")}, True),
        ({"conditions": STARTS, "pendingServiceStatus": application("RUNNING")}, False),
        ({"conditions": READY, "activeServiceStatus": application("UNHEALTHY")}, False),
        ({"conditions": READY}, False),
    ],
)
def test_one_answers_when_pods_and_application_do(status: dict[str, Any], is_ready: bool) -> None:
    result = facts(status)
    assert result.is_ready is is_ready and result.ended is None
    assert not (result.is_ready and result.says)


def test_of_what_is_not_healthy_the_last_lines_are_kept() -> None:
    words = "\n".join(f"line {n}" for n in range(9)) + "\n\nValueError: no such head\n"
    result = facts({"conditions": READY, "activeServiceStatus": application("UNHEALTHY", "as a whole", words)})
    assert result.says == "UNHEALTHY: line 5 | line 6 | line 7 | line 8 | ValueError: no such head"
    result = facts({"conditions": STARTS, "pendingServiceStatus": application("DEPLOYING", "as a whole")})
    assert result.says == "DEPLOYING: as a whole"


def test_an_application_that_cannot_be_deployed_has_ended() -> None:
    result = facts({"conditions": STARTS, "pendingServiceStatus": application("DEPLOY_FAILED", "", "no such head")})
    assert result.ended == Termination("", 64, "DEPLOY_FAILED", "DEPLOY_FAILED: no such head")


def test_one_that_kube_ray_refuses_has_ended() -> None:
    refused = [{"type": "Ready", "status": "False", "reason": "ValidationFailed", "message": "name too long"}]
    assert facts({"conditions": refused}).ended == Termination("", 64, "ValidationFailed", "name too long")


def test_its_pods_say_why_it_does_not_start() -> None:
    unplaced = {"type": "PodScheduled", "status": "False", "message": "0/2 nodes: insufficient cpu"}
    waiting = {"waiting": {"reason": "ErrImagePull", "message": "not found"}}
    result = facts(
        {"conditions": STARTS},
        {"metadata": {"name": "head", "uid": "h"}, "spec": {}, "status": {"conditions": [unplaced]}},
        {
            "metadata": {"name": "copy", "uid": "c"},
            "spec": {},
            "status": {"containerStatuses": [{"name": "service", "image": "x", "state": waiting}]},
        },
    )
    assert result.unschedulable == "0/2 nodes: insufficient cpu"
    assert result.stuck is not None and result.stuck.reason is Reason.IMAGE_PULL_FAILED


def test_one_that_goes_is_not_deleted_twice() -> None:
    """Its pods have their grace, and it stays until they are gone."""
    result = facts({}, deletionTimestamp=timestamp(100.0), finalizers=["foregroundDeletion"])
    assert (result.ends_at, result.grace_seconds, result.finalizers) == (105.0, 0, ("foregroundDeletion",))
