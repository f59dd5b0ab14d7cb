"""Whatever pods answer and whatever their statuses hold: no look fails, and every job can still be ended."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_operator.cluster.kinds import POD
from rljob_operator.observing.progress import progress_of
from rljob_operator.observing.values import Unreadable
from rljob_operator.states.situation.facts import UnreachableLead
from rljob_operator.tests import hostile
from rljob_operator.tests.world import KEY, TWO_PODS, World


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_nothing_that_pods_say_hurts_the_operator_or_wedges_the_job(seed: int) -> None:
    play(Random(seed), num_said=150, bodies_a_job=8)


@pytest.mark.slow
@pytest.mark.timeout(120 * TEST_TIMEOUT_SECONDS)
@pytest.mark.parametrize("seed", range(100, 110))
def test_nothing_that_pods_say_hurts_the_operator_or_wedges_the_job_at_length(seed: int) -> None:
    """10 seeds of 2,000 bodies and statuses are 20,000."""
    play(Random(seed), num_said=2_000, bodies_a_job=60)


def play(chance: Random, num_said: int, bodies_a_job: int) -> None:
    """Jobs one after the other. A status usually ends an attempt, and bodies are read from pods that run."""
    left = num_said
    while left > 0:
        world = World(progress_interval_seconds=0.0, unanswered_polls=1)
        world.to_running(**TWO_PODS, failurePolicy={"maxRestarts": 100})
        for _ in range(bodies_a_job):
            world.progress.answer = _read(hostile.body(chance, world.status.attempt))
            world.clock.now += 1
            world.reconcile()
        num_statuses = chance.randrange(1, 5)
        for _ in range(num_statuses):
            pod = chance.choice(world.pods) if world.pods else None
            if pod is not None:
                _report(world, pod, hostile.status(chance))
            world.wait(chance.choice((1, 5, 40, 400)))
        left -= bodies_a_job + num_statuses
        _check_that_it_can_be_ended(world)


def _read(body: bytes) -> Any:
    try:
        return progress_of(body)
    except Unreadable as error:
        return UnreachableLead(str(error))


def _report(world: World, pod: dict[str, Any], status: Any) -> None:
    """As a kubelet, and as somebody who may annotate pods."""
    metadata = {**pod["metadata"], "annotations": {"rljob.dev/plan-hash": "x" * 9000}}
    spec = {**pod["spec"], "nodeName": "node1"}
    world.cluster.edit(POD, KEY.namespace, pod["metadata"]["name"], status=status, spec=spec, metadata=metadata)


def _check_that_it_can_be_ended(world: World) -> None:
    world.edit(suspend=True)
    for _ in range(3):
        world.wait(700)
    assert world.status.phase in ("Suspended", "Succeeded", "Failed"), world.status
    assert world.status.phase != "Suspended" or not world.pods
