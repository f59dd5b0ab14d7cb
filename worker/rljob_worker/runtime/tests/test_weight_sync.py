"""Which ranks send, receive or copy which weights, and that every rank goes through what is collective."""

from contextlib import contextmanager

import torch

from rljob_api.planning.plan import Plan
from rljob_worker.runtime.tests.test_weight_chunks import Slots
from rljob_worker.runtime.weight_sync import WeightSync
from rljob_worker.tests.documents import plan_of

EDGE = "weights/actor"
TENSORS = {"a": torch.arange(3.0), "b": torch.ones(2, 2, dtype=torch.bfloat16)}


class Trainer:
    """Yields tensor i on source i; remembers what it was asked for and whether it was gone through."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.asked = []
        self.exhausted = 0

    def weights(self, sources=None, dtype=None):
        self.asked.append(sources)
        for i, item in enumerate(TENSORS.items()):
            if sources is None or sources[i % len(sources)] == self.rank:
                yield item
        self.exhausted += 1


class Sampler:
    def __init__(self) -> None:
        self.weights, self.version = {}, 0

    def load_weights(self, weights, version):
        self.weights = {name: tensor.clone() for name, tensor in weights}
        self.version = version


class Buffer:
    """Keeps every source's chunks of a version."""

    def __init__(self) -> None:
        self.sent = {}

    @contextmanager
    def sending(self, version, edge):
        slots = Slots(64)
        yield slots
        self.sent.setdefault((version, edge), []).append(slots.chunks)

    def receive(self, version, edge):
        for chunks in self.sent[version, edge]:
            yield from chunks


def two_groups(workers: int = 3) -> Plan:
    data = {"train": [{"path": "some/data"}], "batchSize": workers}
    return plan_of(groups=[("train", 1, workers), ("rollout", 1, 1)], data=data)


def sync_of(plan, group, rank, buffer, trainer=None, sampler=None) -> WeightSync:
    engines = ({"actor": trainer} if trainer else {}, {"actor": sampler} if sampler else {})
    return WeightSync(plan, group, rank, buffer, *engines)


def test_every_source_sends_its_part_and_a_receiver_puts_them_together():
    plan, buffer, sampler = two_groups(), Buffer(), Sampler()
    trainers = [Trainer(rank) for rank in range(3)]
    for trainer in trainers:
        metrics = sync_of(plan, "train", trainer.rank, buffer, trainer).sync(7)
        assert set(metrics) == {"time/weight_sync_seconds"}
    # two tensors on three sources: the third sends a version without chunks
    assert [len(chunks) for chunks in buffer.sent[7, EDGE]] == [1, 1, 0]
    assert [(t.asked, t.exhausted) for t in trainers] == [([(0, 1, 2)], 1)] * 3
    sync_of(plan, "rollout", 0, buffer, sampler=sampler).sync(7)
    assert sampler.version == 7 and set(sampler.weights) == {"a", "b"}
    assert all(torch.equal(sampler.weights[name], tensor) for name, tensor in TENSORS.items())


def test_a_rank_that_is_no_source_goes_through_the_gathering_and_sends_nothing():
    plan, buffer, trainer = two_groups(32), Buffer(), Trainer(1)
    sync_of(plan, "train", 1, buffer, trainer).sync(1)  # sources are the even ranks
    assert trainer.exhausted == 1 and buffer.sent == {}
    assert trainer.asked == [tuple(range(0, 32, 2))]


def test_edges_of_one_name_are_sent_once():
    plan, buffer = two_groups(1), Buffer()
    (edge,) = plan.weights
    sync_of(plan.model_copy(update={"weights": (edge, edge)}), "train", 0, buffer, Trainer(0)).sync(1)
    assert len(buffer.sent[1, EDGE]) == 1


def test_weights_that_stay_in_the_worker_are_copied_from_engine_to_engine():
    trainer, sampler = Trainer(0), Sampler()
    plan = plan_of()
    sync_of(plan, plan.lead_group, 0, None, trainer, sampler).sync(2)
    assert trainer.asked == [None] and trainer.exhausted == 1
    assert sampler.version == 2 and set(sampler.weights) == {"a", "b"}


def test_a_group_without_an_end_of_the_edge_does_nothing():
    sync_of(two_groups(), "other", 0, None).sync(1)
