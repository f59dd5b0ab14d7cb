"""The operator is killed after each of its writes in turn; a fresh one must end where an undisturbed one ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from rljob_operator.cluster.kinds import CONFIG_MAP, POD, SECRET, SERVICE
from rljob_operator.tests.fake_cluster import Killed, names
from rljob_operator.tests.world import KEY, TWO_PODS, World, disrupted, running

Script = Callable[["HuntedWorld"], None]


class HuntedWorld(World):
    """Every time the operator is killed, the next one takes over."""

    num_killed = 0

    def __init__(self) -> None:
        # Asked at every look: when progress was last asked for is forgotten by an operator that dies.
        super().__init__(progress_interval_seconds=0.001, unanswered_polls=1)

    def reconcile(self) -> float | None:
        again: float | None = 0.0
        try:
            again = super().reconcile()
        except* Killed:
            self.num_killed += 1
            self.cluster.operator_is_dead = False
            self.restart_operator()
        assert len(self.attempts_alive) <= 1, "pods of two attempts are alive together"
        return again


def fail_and_recover(world: HuntedWorld) -> None:
    world.to_running(**TWO_PODS)
    world.wait(10)
    world.end_worker(1, 70, "ValueError: no")
    world.settle()
    world.end_worker(0, 75, "lost train-1")
    world.wait(3)
    world.wait(2)
    world.run_pods()
    world.settle()
    for index in range(2):
        world.end_worker(index, 0, step=10)
    world.settle()


def lose_a_model(world: HuntedWorld) -> None:
    """One beside the job, which fails while the gang runs, and is given back and made again around a pause."""
    world.submit(**TWO_PODS, services=[{"name": "judge", "run": "mine:app"}])
    world.settle()
    world.run_pods()
    world.settle()
    world.run_pods()
    world.settle()
    world.end_worker(0, 1, "no memory")  # by name the model comes first
    world.wait(3)
    world.run_pods()
    world.settle()
    world.edit(suspend=True)
    world.wait(30)
    world.wait(30)
    world.edit(suspend=False)
    world.settle()
    for _ in range(2):
        world.run_pods()
        world.settle()


def suspend_and_resume(world: HuntedWorld) -> None:
    world.to_running(**TWO_PODS)
    world.wait(10)
    world.edit(suspend=True)
    world.settle()
    world.wait(30)
    world.edit(suspend=False)
    world.settle()
    world.run_pods()
    world.settle()
    for index in range(2):
        world.end_worker(index, 0, step=10)
    world.settle()


def restarts_used_up(world: HuntedWorld) -> None:
    world.to_running(failurePolicy={"maxRestarts": 1}, **TWO_PODS)
    for _ in range(2):
        world.end_worker(0, 137)
        world.wait(3)
        world.wait(2)
        world.run_pods()
        world.settle()
    world.wait(3)


def disrupted_twice(world: HuntedWorld) -> None:
    world.to_running(failurePolicy={"maxRestarts": 0}, **TWO_PODS)
    world.set_pod(world.pods[0], disrupted(running(), "EvictionByEvictionAPI"))
    world.cluster.remove(POD, world.pods[0])
    world.settle()
    world.cluster.end_pods()
    world.settle()
    world.wait(3)
    world.wait(3)
    world.run_pods()
    world.settle()
    world.cluster.remove(POD, world.pods[1], grace_seconds=0)
    world.settle()
    world.wait(3)
    world.wait(3)


def expire(world: HuntedWorld) -> None:
    lifecycle = {"ttlSecondsAfterFinished": 60, "cleanPodPolicy": "All"}
    world.to_running(lifecycle=lifecycle)
    world.end_worker(0, 0)
    world.settle()
    world.wait(30)
    world.wait(31)


SCRIPTS = [fail_and_recover, suspend_and_resume, restarts_used_up, disrupted_twice, expire, lose_a_model]


def outcome(world: World) -> dict[str, object]:
    """Everything that must not depend on when the operator died."""
    cluster = world.cluster
    job = cluster.peek_job()
    return {
        "status": job.get("status") if job else None,
        "pods": names(cluster.all(POD)),
        "others": [names(cluster.all(kind, KEY.namespace)) for kind in (SERVICE, CONFIG_MAP, SECRET)],
        "tokens": [item["stringData"] for item in cluster.all(SECRET)],
        "pods ever made": sorted(name for verb, kind, name in cluster.done if (verb, kind) == ("create", "Pod")),
    }


def events(world: World) -> Counter[tuple[str, str]]:
    """Events that were reported; an operator that dies between writing the status and reporting leaves some out."""
    return Counter((event["reason"], event["message"]) for event in world.cluster.events())


def run(script: Script, kill_after_write: int | None = None) -> HuntedWorld:
    world = HuntedWorld()
    world.cluster.kill_after_write = kill_after_write
    script(world)
    return world


@pytest.mark.parametrize("stride", [4, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_operator_killed_after_any_write_ends_where_an_undisturbed_one_ends(script: Script, stride: int) -> None:
    undisturbed = run(script)
    expected = outcome(undisturbed)
    assert undisturbed.cluster.num_writes > 10
    for number in range(1, undisturbed.cluster.num_writes + 1, stride):
        hunted = run(script, number)
        assert hunted.num_killed == 1
        assert events(hunted) <= events(undisturbed), "nothing is reported twice, or differently"
        assert outcome(hunted) == expected, f"killed after write {number}: {hunted.cluster.done[number - 1]}"


def certificates(world: HuntedWorld) -> dict[str, list[str]]:
    """Hosts that have a certificate, by Secret; each Secret was made once."""
    made = [name for verb, kind, name in world.cluster.done if (verb, kind) == ("create", "Secret")]
    assert len(made) == len(set(made))
    return {item["metadata"]["name"]: sorted(item["stringData"]) for item in world.cluster.all(SECRET)}


@pytest.mark.parametrize("stride", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_an_attempts_certificates_are_issued_once_however_often_the_operator_dies(stride: int) -> None:
    """They differ from one issue to the next, and hosts of two issues refuse each other."""

    def restarted(world: HuntedWorld) -> None:
        world.to_running(dataBuffer={"tls": True}, **TWO_PODS)
        world.end_worker(0, 137)
        world.wait(3)
        world.wait(2)
        world.run_pods()
        world.settle()

    undisturbed = run(restarted)
    hosts = ["ca.crt", "train-0.crt", "train-0.key", "train-1.crt", "train-1.key"]
    expected = certificates(undisturbed)
    tls = {f"{KEY.name}-tls-a{attempt}": hosts for attempt in (1, 2)}
    assert expected == tls | {f"{KEY.name}-token": ["agents-token", "token"]}
    for number in range(1, undisturbed.cluster.num_writes + 1, stride):
        assert certificates(run(restarted, number)) == expected
