"""Batches between the stages of a worker and the databuffer."""

import queue
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from rljob_api.catalogue.columns import IMAGES
from rljob_api.pipeline.meshes import Mesh
from rljob_api.planning.plan import EdgePlan, StagePlan
from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.batch import Batch, Column
from rljob_worker.errors import DeadlineExceeded
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


class AskedBuffer(FakeBuffer):
    """Rows are got when they are there, and who asks is noted."""

    def __init__(self, *, late=0):
        """late: how many calls wait in vain."""
        super().__init__()
        self.late, self.asked, self.there = late, [], threading.Event()

    def get(self, step, edge, *, deadline_seconds):
        self.asked.append((edge, threading.current_thread() is threading.main_thread()))
        if len(self.asked) <= self.late:
            raise DeadlineExceeded("rows did not come")
        assert self.there.wait(TEST_TIMEOUT_SECONDS)
        return self.rows[step, edge]


SHOWN = ("a->c", ("x", IMAGES), "Buffer")


def pictured():
    return rows(x=[1, 2]).with_columns({IMAGES: Column.binary([b"1", b"2"])})


def showing(buffer, decode):
    plan = make_plan(SHOWN, ("b->c", ("y",), "Buffer"))
    return Handover(plan, "train", 0, buffer, 60.0, {"c": decode})


def test_pictures_are_decoded_before_their_stage_takes_its_rows():
    buffer, decoded = AskedBuffer(), queue.Queue()
    handover = showing(buffer, decoded.put)
    buffer.rows = {(1, "a->c"): pictured(), (1, "b->c"): rows(y=[3, 4])}
    handover.begin_step(1)
    buffer.there.set()
    assert decoded.get(timeout=TEST_TIMEOUT_SECONDS) is buffer.rows[1, "a->c"]
    assert set(handover.take(make_stage("c"), 1).columns) == {"x", IMAGES, "y"}
    assert buffer.asked == [("a->c", False), ("b->c", True)]
    handover.end_step()
    assert buffer.released == list(buffer.rows.values())


def test_rows_that_were_asked_for_too_early_are_asked_for_again():
    buffer = AskedBuffer(late=1)
    buffer.rows, handover = {(1, "a->c"): pictured(), (1, "b->c"): rows(y=[3, 4])}, showing(buffer, lambda batch: None)
    buffer.there.set()
    handover.begin_step(1)
    assert "x" in handover.take(make_stage("c"), 1)
    assert buffer.asked == [("a->c", False), ("a->c", True), ("b->c", True)]


def test_what_cannot_be_decoded_ahead_is_left_to_its_stage():
    buffer = AskedBuffer()
    buffer.rows = {(1, "a->c"): pictured(), (1, "b->c"): rows(y=[3, 4])}
    handover = showing(buffer, lambda batch: batch["missing"])
    buffer.there.set()
    handover.begin_step(1)
    assert "x" in handover.take(make_stage("c"), 1)


def test_an_error_of_rows_asked_for_ahead_is_that_of_their_stage():
    buffer = AskedBuffer()
    buffer.there.set()  # there are no rows: KeyError
    handover = showing(buffer, lambda batch: None)
    handover.begin_step(1)
    with pytest.raises(KeyError):
        handover.take(make_stage("c"), 1)
    assert buffer.asked == [("a->c", False)]
