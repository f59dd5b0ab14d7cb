"""What is made of what Ray Serve says; Ray itself is in test_serving."""

from types import SimpleNamespace

import pytest

from rljob_api.v1alpha1 import ServiceSpec
from rljob_worker.errors import DeadlineExceeded, InvalidJob, PeerLost
from rljob_worker.services.health import CALM_SECONDS, LOOK_SECONDS, SILENCE_SECONDS, changes_of_health


class Enough(Exception):
    """Nothing more is said."""


def service(name="judge", **fields):
    return ServiceSpec.model_validate({"name": name, "run": "my:app", **fields})


def said(status, message="", running=(1, 1)):
    """running: copies of each of its two deployments."""
    first, second = ({"RUNNING": item, "STARTING": 1} if item else {"STARTING": 1} for item in running)
    deployments = {
        "Broken": SimpleNamespace(message=message, replica_states=first),
        "Fine": SimpleNamespace(message="", replica_states=second),
    }
    return SimpleNamespace(status=status, message="Failed to update the deployments", deployments=deployments)


RUNS, DEAD = said("RUNNING"), said("UNHEALTHY", "a replica's health check failed", running=(0, 1))


class RayServe:
    """What it says changes from look to look; the last words stay. An exception is raised."""

    def __init__(self, *looks, lasting=False):
        self.looks, self.lasting = list(looks), lasting
        self.now, self.pauses = 0.0, []

    def applications(self):
        if len(self.looks) == 1 and self.lasting:
            looks = self.looks[0]
        elif not self.looks:
            raise AssertionError("a look more than there are words")
        else:
            looks = self.looks.pop(0)
        if isinstance(looks, Exception):
            raise looks
        return looks

    def pause(self, seconds):
        self.pauses.append(seconds)
        self.now += 1.0
        if not self.looks:
            raise Enough

    def changes(self, *services):
        """(second, whether all are healthy), until nothing more is said."""
        result = []
        try:
            for is_healthy in changes_of_health(services, self.applications, lambda: self.now, self.pause):
                result.append((self.now, is_healthy))
        except Enough:
            return result
        raise AssertionError("it has no end")


def test_all_services_are_waited_for():
    # nothing yet; a runs; b runs a look later
    serve = RayServe({}, {"a": RUNS, "b": said("DEPLOYING")}, {"a": RUNS, "b": RUNS}, {"a": RUNS, "b": RUNS})
    assert serve.changes(service("a"), service("b")) == [(2.0, True)]
    assert serve.pauses == [LOOK_SECONDS, LOOK_SECONDS, CALM_SECONDS, CALM_SECONDS]


def test_one_that_dies_is_unhealthy_until_it_is_back(caplog):
    looks = [{"a": RUNS, "judge": item} for item in (RUNS, DEAD, DEAD, RUNS, DEAD)]
    assert RayServe(*looks).changes(service("a"), service()) == [(0.0, True), (1.0, False), (3.0, True), (4.0, False)]
    assert caplog.messages == ['service "judge" was healthy, and is UNHEALTHY: a replica\'s health check failed'] * 2


def test_one_of_which_a_copy_answers_is_healthy_once_all_of_them_were():
    limping = said("UNHEALTHY", running=(1, 2))
    assert RayServe({"judge": limping}, {"judge": RUNS}, {"judge": limping}).changes(service()) == [(1.0, True)]


def test_one_without_a_deployment_does_not_answer():
    empty = SimpleNamespace(status="DELETING", message="", deployments={})
    assert RayServe({"judge": RUNS}, {"judge": empty}).changes(service()) == [(0.0, True), (1.0, False)]


def test_one_that_cannot_start_is_named_with_the_end_of_what_it_said():
    message = "Deployment failed:\n" + "\n".join(f"line {n}" for n in range(9)) + "\nValueError: no such head"
    with pytest.raises(InvalidJob) as caught:
        RayServe({"judge": said("DEPLOY_FAILED", message, running=(0, 0))}).changes(service())
    assert str(caught.value) == (
        'service "judge" (my:app) does not start: line 5 | line 6 | line 7 | line 8 | ValueError: no such head'
    )


def test_one_that_ray_serve_gives_up_after_it_was_healthy_may_start_again():
    with pytest.raises(PeerLost, match='service "judge" .my:app. was healthy, and does not start again: no memory'):
        RayServe({"judge": RUNS}, {"judge": said("DEPLOY_FAILED", "no memory", running=(0, 1))}).changes(service())


def test_one_that_takes_too_long_is_named_with_its_deadline():
    slow = service(healthSeconds=3.0)
    with pytest.raises(DeadlineExceeded, match="judge.*DEPLOYING and not healthy after healthSeconds 3: still loading"):
        RayServe({"judge": said("DEPLOYING", "still loading")}, lasting=True).changes(slow)
    with pytest.raises(DeadlineExceeded, match="NOT_STARTED .*it says nothing"):
        RayServe({}, lasting=True).changes(slow)


def test_the_deadline_of_one_that_was_healthy_begins_when_it_dies():
    serve = RayServe(*[{"judge": RUNS}] * 9, {"judge": DEAD}, lasting=True)
    with pytest.raises(DeadlineExceeded, match="UNHEALTHY and not healthy after healthSeconds 3: a replica's health"):
        serve.changes(service(healthSeconds=3.0))
    assert serve.now == 13.0  # it dies at 9 s, and more than 3 s later means at 13 s


def test_a_controller_that_comes_back_changes_nothing():
    away = RuntimeError("the actor died")
    serve = RayServe({"judge": RUNS}, *[away] * int(SILENCE_SECONDS), {"judge": RUNS})
    assert serve.changes(service()) == [(0.0, True)]


def test_a_controller_that_stays_away_is_the_end():
    serve = RayServe({"judge": RUNS}, RuntimeError("the actor died"), lasting=True)
    with pytest.raises(PeerLost, match="does not say how its applications are: the actor died"):
        serve.changes(service())
    assert serve.now == SILENCE_SECONDS + 1
