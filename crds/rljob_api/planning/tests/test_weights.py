"""Which ranks send weights, and what data buffers keep for them."""

import pytest

from rljob_api.pipeline.room import memory_beside_weights, weights_share
from rljob_api.planning.plan import Plan, WeightEdge
from rljob_api.planning.weights import (
    MIN_SLOT_BYTES,
    WINDOW,
    least_memory,
    num_slots,
    slot_bytes,
    weight_flows,
)
from rljob_api.tests.builders import TWO_GROUPS, make_plan

MI = 1 << 20


def groups(train: tuple[int, int], rollout: tuple[int, int], memory: str = "1Gi") -> Plan:
    """Each (hosts, workers per host)."""
    written = ", ".join(
        f"{{name: {name}, replicas: {hosts}, accelerator: {{count: {count}}}}}"
        for name, (hosts, count) in (("train", train), ("rollout", rollout))
    )
    plan = make_plan(f"workerGroups=[{written}]", "data.batchSize=96")
    buffer = plan.spec.data_buffer.model_copy(update={"memory": memory})
    return plan.model_copy(update={"spec": plan.spec.model_copy(update={"data_buffer": buffer})})


def test_weights_that_stay_in_their_worker_are_no_flow():
    assert weight_flows(make_plan()) == []
    assert slot_bytes(make_plan()) == 16 * MI


def test_edges_of_one_name_are_one_flow_with_every_target_once():
    plan = make_plan(*TWO_GROUPS)
    (edge,) = plan.weights
    again = plan.model_copy(update={"weights": (edge, edge)})
    (flow,) = weight_flows(again)
    assert (flow.name, flow.source.name, [t.name for t in flow.targets]) == ("weights/actor", "train", ["rollout"])
    other = WeightEdge(**{**edge.model_dump(), "name": "weights/other"})
    assert [f.name for f in weight_flows(plan.model_copy(update={"weights": (edge, other)}))] == [
        "weights/actor",
        "weights/other",
    ]
    local = edge.model_copy(update={"transport": "InProcess"})
    assert weight_flows(plan.model_copy(update={"weights": (local,)})) == []


def test_a_host_keeps_a_window_for_each_source_that_passes_through():
    # 4 sources on 2 hosts: 2 on each, and all 4 go through a host that receives
    plan = groups((2, 2), (3, 1))
    assert (num_slots(plan, "train"), num_slots(plan, "rollout")) == (2 * WINDOW, 4 * WINDOW)
    # 48 ranks of 3 hosts: every third is one of the 16, 0 3 6 9 12 15 | 18 ... 30 | 33 ... 45: 6 on the first host
    wide = groups((3, 16), (1, 2))
    assert (num_slots(wide, "train"), num_slots(wide, "rollout")) == (6 * WINDOW, 16 * WINDOW)


def test_two_models_share_the_memory():
    plan = groups((1, 1), (1, 1), "16Mi")
    edges = tuple(plan.weights[0].model_copy(update={"name": f"weights/{i}"}) for i in range(2))
    # one: 4 slots of 2 Mi are half of 16 Mi; two: 8 slots of 1 Mi
    assert slot_bytes(plan) == 2 * MI
    assert slot_bytes(plan.model_copy(update={"weights": edges})) == MI


@pytest.mark.parametrize(
    ("memory", "size"),
    [("1Gi", 16 * MI), ("128Mi", 16 * MI), ("127Mi", 8 * MI), ("1Mi", 128 << 10), ("512Ki", 64 << 10), ("511Ki", None)],
)
def test_slots_are_as_large_as_the_share_of_weights_allows_up_to_16_mebibytes(memory, size):
    assert slot_bytes(groups((1, 1), (1, 1), memory)) == size


def test_the_smallest_memory_for_weights():
    # 16 sources x 4 slots x 64 KiB = 4 MiB, and as much for rows
    assert least_memory(groups((2, 8), (1, 1))) == 2 * 16 * WINDOW * MIN_SLOT_BYTES == 8 * MI


def test_the_share_of_weights():
    # half of a small arena, 64 MiB of a larger one, one byte in eight from 512 MiB on
    assert [weights_share(each * MI) for each in (16, 128, 512, 1024)] == [8 * MI, 64 * MI, 64 * MI, 128 * MI]
    assert [memory_beside_weights(each * MI) for each in (1, 448, 896)] == [65 * MI, 512 * MI, 1024 * MI]
