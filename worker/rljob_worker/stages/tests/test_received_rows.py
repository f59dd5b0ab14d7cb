"""Rows of guests on the rank that gets them, whoever made them and in whatever order they came."""

from types import SimpleNamespace

import numpy as np
import pytest

from rljob_api.tests.builders import make_plan
from rljob_worker.batch import Batch, Column
from rljob_worker.databuffer.client import DeliveredRows
from rljob_worker.errors import BadData
from rljob_worker.metrics.report import StepReport, report_to_bytes
from rljob_worker.metrics.scalars import mean, total
from rljob_worker.stages.received_rows import ReceivedLeases, ReceivedRows


def lease(index, rows, guest="rollout-0", reward=0.0):
    columns = {"response_ids": Column.fixed(np.array(rows) * 10), "rewards": Column.fixed(np.array(rows) / 2)}
    batch = Batch(np.array(rows), np.array(rows) // 2, np.ones(len(rows), np.int64), columns)
    metrics = {
        "reward/mean": mean(reward, 2.0),
        "time/generation_seconds": mean(3.0),
        "tokens/response_total": total(5.0),
    }
    return DeliveredRows(index, guest, batch, report_to_bytes(StepReport(metrics, [{"row_id": rows[0]}]), 0))


def received(*leases):
    asked = []

    def deliveries(stage, step):
        asked.append((stage, step))
        for one in leases:
            yield one
            for column in one.batch.columns.values():
                column.values[:] = -1  # its memory holds something else once the next is asked for

    return ReceivedLeases(deliveries), asked


def stages(*overrides):
    plans = [
        SimpleNamespace(name="rollout", after=(), writes=("response_ids",)),
        SimpleNamespace(name="reward", after=("rollout",), writes=("rewards",)),
    ]
    return [ReceivedRows(plan, SimpleNamespace(plan=make_plan(*overrides))) for plan in plans]


def test_leases_are_put_together_in_the_order_of_their_numbers():
    leases, asked = received(lease(1, [2, 3], "rollout-1", 3.0), lease(0, [0, 1], "rollout-0", 1.0))
    context = SimpleNamespace(received=leases, step=1)
    rollout, reward = (stage.run(None, context) for stage in stages())
    assert asked == [("rollout", 1)], "both stages have their rows of the same leases"
    assert rollout.batch.row_ids.tolist() == reward.batch.row_ids.tolist() == [0, 1, 2, 3]
    assert rollout.batch.columns.keys() == {"response_ids"} and reward.batch.columns.keys() == {"rewards"}
    assert rollout.batch["response_ids"].values.tolist() == [0, 10, 20, 30]
    assert reward.batch["rewards"].values.tolist() == [0.0, 0.5, 1.0, 1.5]
    assert rollout.samples == [{"row_id": 0}, {"row_id": 2}] and reward.samples == [] and reward.metrics == {}
    values = {name: scalar.value for name, scalar in rollout.metrics.items()}
    assert values == {
        "reward/mean": 1.0,  # (1 + 3) / 4
        "generators/generation_seconds": 3.0,
        "tokens/response_total": 10.0,
        "generators/tokens/rollout-0": 5.0,
        "generators/tokens/rollout-1": 5.0,
    }


def test_tokens_of_a_guest_are_those_of_all_its_copies_and_many_guests_have_no_names():
    leases, _ = received(lease(0, [0], "rollout-0"), lease(1, [1], "rollout-0/1"), lease(2, [2], "rollout-64"))
    metrics = leases.rows("rollout", 1).metrics
    assert {name for name in metrics if name.startswith("generators/tokens/")} == {"generators/tokens/rollout-0"}
    assert metrics["generators/tokens/rollout-0"].value == 10.0


@pytest.mark.parametrize("steps", [(1, 2), (1, 1)])
def test_rows_of_a_step_are_asked_for_once(steps):
    leases, asked = received(lease(0, [0, 1]))
    for step in steps:
        leases.rows("rollout", step)
    assert asked == [("rollout", step) for step in sorted(set(steps))]


CONVERSATION = ("rollout.conversation={run: 'mine:play', maxFailed: 0.25}", "data.batchSize=2", "algorithm.groupSize=4")


def played(index, kept):
    """A lease of 4 trajectories of one row each."""
    rows = np.arange(4) + 4 * index
    batch = Batch(rows, rows // 4, np.ones(4, np.int64), {"kept": Column.fixed(np.array(kept))})
    metrics = {"conversation/failed_fraction/error": total(kept.count(0) / 8)}
    return DeliveredRows(index, "rollout-0", batch, report_to_bytes(StepReport(metrics, []), 0))


@pytest.mark.parametrize("num_elsewhere", [0, 1])
def test_conversations_that_failed_are_counted_over_all_leases_and_ranks(num_elsewhere):
    leases, _ = received(played(0, [1, 0, 1, 1]), played(1, [1, 1, 0, 1]))
    job = make_plan(*CONVERSATION).spec
    context = SimpleNamespace(received=leases, step=3, job=job, reduce=lambda here: here + num_elsewhere)
    rollout, reward = stages(*CONVERSATION)
    reward.run(None, context)
    if not num_elsewhere:  # 2 of 8 may fail
        assert len(rollout.run(None, context).batch) == 8
        return
    causes = r"3 of 8 conversations failed.*: 2 error \(described in the logs of generators\)"
    with pytest.raises(BadData, match=f"step 3: {causes}"):
        rollout.run(None, context)
