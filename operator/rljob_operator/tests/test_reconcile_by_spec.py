"""A job whose every look fails keeps its deadlines, and can be suspended."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from rljob_operator.gangs.provider import GangProvider
from rljob_operator.manifests.context import JobContext
from rljob_operator.tests.world import TWO_PODS, World


class Broken(World):
    """An operator with a bug, once `is_broken`."""

    def __init__(self) -> None:
        super().__init__(select=self._select)
        self.is_broken = False

    def _select(self, context: JobContext) -> GangProvider:
        if self.is_broken:
            raise RecursionError("a bug of ours")
        return World().select(context)

    def look(self, times: int = 1, seconds: float = 1.0) -> None:
        """Some looks, all of which fail, a while apart."""
        for _ in range(times):
            with contextlib.suppress(RecursionError):
                self.reconcile()
            self.clock.now += seconds
            self.cluster.end_pods()


def broken(**spec: Any) -> Broken:
    world = Broken()
    world.to_running(**TWO_PODS, **spec)
    world.is_broken = True
    return world


def test_nothing_is_decided_before_the_tenth_look_that_fails() -> None:
    world = broken(lifecycle={"activeSeconds": 100})
    world.clock.now += 200
    world.look(9)
    assert world.status.phase == "Running" and world.reason("Degraded") == ("True", "OperatorError")
    world.look()
    assert world.reason("Failed") == ("True", "ActiveDeadlineExceeded")
    world.look(2)
    assert not world.pods


def test_a_job_without_a_deadline_runs_on_until_it_is_suspended() -> None:
    world = broken()
    world.look(20, seconds=1000)
    assert world.status.phase == "Running" and len(world.pods) == 2
    world.edit(suspend=True)
    world.look()
    assert world.status.phase == "Suspending"
    world.look(2)
    assert world.status.phase == "Suspended" and not world.pods
    world.edit(suspend=False)
    world.look(3)
    assert world.status.phase == "Pending" and world.status.attempt == 1 and not world.pods
    assert world.reason("Accepted") == ("False", "OperatorError")
    world.is_broken = False
    world.settle()
    assert world.status.attempt == 2 and len(world.pods) == 2
    assert world.reason("Degraded") == ("False", "AsExpected")


def test_a_look_that_does_well_begins_the_count_again() -> None:
    world = broken(lifecycle={"activeSeconds": 100})
    world.look(9)
    world.is_broken = False
    world.settle()
    world.is_broken = True
    world.clock.now += 200
    world.look(9)
    assert world.status.phase == "Running"


@pytest.mark.parametrize("phase", ["Pending", "Starting"])
def test_a_job_that_waits_for_its_pods_ends_when_it_has_waited_long_enough(phase: str) -> None:
    world = Broken()
    world.is_broken = phase == "Pending"
    world.submit(lifecycle={"pendingSeconds": 60})
    world.look(2, seconds=0)
    assert world.status.phase == phase
    world.is_broken = True
    world.look(15, seconds=20)
    assert world.reason("Failed") == ("True", "PendingTimeout")


def test_a_finished_job_still_expires() -> None:
    world = broken(lifecycle={"activeSeconds": 100, "ttlSecondsAfterFinished": 50})
    world.clock.now += 200
    world.look(10)
    assert world.status.phase == "Failed"
    world.clock.now += 60
    world.look(10)
    assert world.cluster.peek_job() is None
