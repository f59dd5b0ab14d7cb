"""Batches between the stages of a worker and the databuffer."""

from types import SimpleNamespace

import numpy as np
import pytest

from rljob_api.pipeline.meshes import Mesh
from rljob_api.planning.plan import EdgePlan, StagePlan
from rljob_worker.batch import Batch, Column
from rljob_worker.runtime.handover import Handover


class FakeBuffer:
    """A data buffer of one host: what is put can be got."""

    def __init__(self):
        self.rows, self.released = {}, []

    def put(self, step, edge, batch, *, deadline_seconds):
        self.rows[step, edge] = batch

    def get(self, step, edge, *, deadline_seconds):
        return self.rows[step, edge]

    def release(self, batch):
        self.released.append(batch)


def make_stage(name, mesh=None, **rename):
    return StagePlan(
        name=name, run="m:f", group="train", models=(), engines=(), mesh=mesh or Mesh(dp=2), after=(), reads=(),
        writes=(), rename=rename, needs_groups=False, balance="None",
    )  # fmt: skip


def make_plan(*edges):
    names = dict.fromkeys(name for edge in edges for name in edge[0].split("->"))
    plans = [
        EdgePlan(name=n, producer=n.split("->")[0], consumer=n.split("->")[1], columns=c, transport=t)
        for n, c, t in edges
    ]
    return SimpleNamespace(edges=plans, group=lambda _: SimpleNamespace(schedule=tuple(names)))


def rows(**columns):
    return Batch.build([4, 5], [2, 2], {name: Column.fixed(np.asarray(value)) for name, value in columns.items()})


def test_inputs_of_several_producers_are_joined_under_the_stages_own_names():
    plan = make_plan(("a->c", ("x",), "Local"), ("b->c", ("total",), "Buffer"))
    buffer = FakeBuffer()
    handover = Handover(plan, "train", 0, buffer, 1.0)
    handover.give(make_stage("a"), 1, rows(x=[1, 2], unread=[0, 0]))
    handover.give(make_stage("b"), 1, rows(total=[0.5, 1.5]))
    batch = handover.take(make_stage("c", rewards="total"), 1)
    assert set(batch.columns) == {"x", "rewards"}
    assert batch["rewards"].values.tolist() == [0.5, 1.5]
    seconds = handover.end_step()
    assert set(seconds) == {"time/a_put_seconds", "time/b_put_seconds", "time/c_wait_seconds"}
    assert len(buffer.released) == 1


def test_only_the_first_rank_of_a_copy_puts_rows():
    # dp 1, tp 2: ranks 0 and 1 hold the same rows
    plan = make_plan(("a->b", ("x",), "Buffer"))
    buffer = FakeBuffer()
    Handover(plan, "train", 1, buffer, 1.0).give(make_stage("a", Mesh(dp=1, tp=2)), 1, rows(x=[1, 2]))
    assert buffer.rows == {}
    Handover(plan, "train", 0, buffer, 1.0).give(make_stage("a", Mesh(dp=1, tp=2)), 1, rows(x=[1, 2]))
    assert list(buffer.rows) == [(1, "a->b")]


def test_the_source_takes_nothing():
    assert Handover(make_plan(("a->b", (), "Local")), "train", 0, FakeBuffer(), 1.0).take(make_stage("a"), 1) is None


def test_a_local_batch_that_nobody_took_is_our_mistake():
    handover = Handover(make_plan(("a->b", ("x",), "Local")), "train", 0, FakeBuffer(), 1.0)
    handover.give(make_stage("a"), 1, rows(x=[1, 2]))
    with pytest.raises(AssertionError, match=r"edges nobody took: \['a->b'\]"):
        handover.end_step()
