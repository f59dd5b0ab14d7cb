"""Which ranks send, help, receive or copy which weights."""

import torch

from rljob_api.memory.weight_slices import WeightSlices
from rljob_worker.tests.documents import plan_of
from rljob_worker.weights.delta import DeltaLoader, DeltaSender
from rljob_worker.weights.endpoints import (
    GatherEndpoint,
    InProcessEndpoint,
    SliceLoader,
    SourceEndpoint,
    TargetEndpoint,
)
from rljob_worker.weights.sync import build_weight_sync

CPU = torch.device("cpu")
SLICES = WeightSlices()


class Transport:
    """Says for whom it makes what."""

    def sender(self, flow, rank):
        return "sender", flow.name, rank

    def receiver(self, flow, group, rank):
        return "receiver", flow.name, group, rank


def two_groups(workers=3, transport="Auto", delta=None):
    data = {"train": [{"path": "some/data"}], "batchSize": workers}
    groups = [("train", 1, workers), ("rollout", 1, 1)]
    return plan_of(groups=groups, data=data, weightSync={"transport": transport, "delta": delta})


def sides_of(plan, group, rank, transport="DataBuffer"):
    engines = {"actor": "trainer"}, {"actor": "sampler"}
    return build_weight_sync(
        plan, group, rank, {transport: Transport()}, *engines, {"actor": SLICES}, torch.device("cpu")
    ).endpoints


def test_every_rank_that_trains_sends_and_every_rank_that_samples_receives():
    (source,), (target,) = sides_of(two_groups(), "train", 2), sides_of(two_groups(), "rollout", 0)
    assert source == SourceEndpoint("trainer", (0, 1, 2), ("sender", "weights/actor", 2), "actor", 2, SLICES)
    assert isinstance(target, TargetEndpoint) and isinstance(target.rollout, SliceLoader)
    assert target.receiver == ("receiver", "weights/actor", "rollout", 0)


def test_what_changed_is_sent_where_the_job_says_so():
    plan = two_groups(32, delta={"fullEvery": 3})
    (source,), (target,) = sides_of(plan, "train", 2), sides_of(plan, "rollout", 0)
    assert (type(source.sender), type(target.rollout)) == (DeltaSender, DeltaLoader)
    assert sides_of(plan, "train", 1) == [GatherEndpoint("trainer", tuple(range(0, 32, 2)))]


def test_a_rank_that_is_no_source_takes_part_in_the_gathering():
    assert sides_of(two_groups(32), "train", 1) == [GatherEndpoint("trainer", tuple(range(0, 32, 2)))]
    # a process group costs each receiver a communicator, so that four ranks of five send
    apart = two_groups(5, "Collective")
    kinds = [type(side) for rank in range(5) for side in sides_of(apart, "train", rank, "Collective")]
    assert kinds == [SourceEndpoint, SourceEndpoint, SourceEndpoint, SourceEndpoint, GatherEndpoint]


def test_edges_of_one_name_are_one_side():
    plan = two_groups(1)
    (edge,) = plan.weights
    twice = plan.model_copy(update={"weights": (edge, edge)})
    assert len(sides_of(twice, "train", 0)) == len(sides_of(twice, "rollout", 0)) == 1


def test_weights_that_stay_in_the_worker_are_copied_from_engine_to_engine():
    plan = plan_of()
    assert sides_of(plan, plan.lead_group, 0) == [InProcessEndpoint("trainer", "sampler", SLICES, 0)]


def test_a_group_without_an_end_of_the_edge_has_no_side():
    assert sides_of(two_groups(), "other", 0) == []
