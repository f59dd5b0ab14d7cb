"""Which ranks send weights, and what data buffers keep for them."""

import pytest

from rljob_api.pipeline.buffer_capacity import memory_beside_weights, weights_share
from rljob_api.planning.plan import Plan, WeightEdge
from rljob_api.planning.weights.flows import (
    MIN_SLOT_BYTES,
    WINDOW,
    least_memory,
    slot_bytes,
    slots_per_source,
    store_bytes,
    store_room,
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


def stale(plan: Plan, staleness: int) -> Plan:
    rollout = plan.spec.rollout.model_copy(update={"max_staleness": staleness})
    return plan.model_copy(update={"spec": plan.spec.model_copy(update={"rollout": rollout})})


def test_weights_that_stay_in_their_worker_are_no_flow():
    assert weight_flows(make_plan()) == []
    assert slot_bytes(make_plan()) == 64 * MI


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


def test_which_sources_pass_through_the_host_that_has_most():
    # 4 sources on 2 hosts: 2 on each, and all 4 go through a host that receives
    plan = groups((2, 2), (3, 1))
    (flow,) = weight_flows(plan)
    assert (flow.most_sources("train"), flow.most_sources("rollout"), flow.most_sources("other")) == (2, 4, 0)
    # 48 ranks of 3 hosts: every third is one of the 16, 0 3 6 9 12 15 | 18 ... 30 | 33 ... 45: 6 on the first host
    wide = groups((3, 16), (1, 2))
    (flow,) = weight_flows(wide)
    assert (flow.most_sources("train"), flow.most_sources("rollout")) == (6, 16)


def test_hosts_that_send_have_as_many_slots_as_the_share_of_weights_holds():
    # 1 source: 64 MiB hold 4 slots of 16 MiB, an eighth of 8 GiB 16 of 64 MiB; 2 sources on a host: 8 each
    assert [slots_per_source(groups((1, 1), (2, 1), memory), "train") for memory in ("128Mi", "8Gi")] == [4, 16]
    two = groups((1, 2), (2, 1), "8Gi")
    assert (slots_per_source(two, "train"), slots_per_source(two, "rollout")) == (8, WINDOW)
    two = groups((1, 2), (2, 1), "2Gi")
    # with several versions at once, hosts that receive as well
    # and in more and smaller chunks: 256 MiB for 2 sources x 4 versions x 4 slots of 8 MiB each
    assert slot_bytes(stale(two, 1)) == 8 * MI
    assert slots_per_source(stale(two, 1), "rollout") == 16
    assert slots_per_source(groups((1, 1), (1, 1), "511Ki"), "train") == WINDOW  # refused elsewhere
    assert slots_per_source(make_plan(), "workers") == WINDOW


@pytest.mark.parametrize(("staleness", "versions"), [(0, 1), (1, 4), (2, 6)])
def test_how_many_versions_may_exist_at_once(staleness, versions):
    plan = stale(groups((1, 1), (1, 1)), staleness)
    assert plan.num_versions == weight_flows(plan)[0].num_versions == versions


def test_two_models_share_the_memory():
    plan = groups((1, 1), (1, 1), "16Mi")
    edges = tuple(plan.weights[0].model_copy(update={"name": f"weights/{i}"}) for i in range(2))
    # one: 4 slots of 2 Mi are half of 16 Mi; two: 8 slots of 1 Mi
    assert slot_bytes(plan) == 2 * MI
    assert slot_bytes(plan.model_copy(update={"weights": edges})) == MI


@pytest.mark.parametrize(
    ("memory", "size"),
    [
        ("64Gi", 64 * MI),
        ("2Gi", 64 * MI),
        ("1Gi", 32 * MI),
        ("128Mi", 16 * MI),
        ("127Mi", 8 * MI),
        ("1Mi", 128 << 10),
        ("512Ki", 64 << 10),
        ("511Ki", None),
    ],
)
def test_slots_are_as_large_as_the_share_of_weights_allows_up_to_a_bucket(memory, size):
    assert slot_bytes(groups((1, 1), (1, 1), memory)) == size


def test_what_all_versions_at_once_take_where_they_are_sent_from():
    # 2 sources on one host: 1,000 MiB each and a bucket of 64 MiB, in 133 slots of 8 MiB; four versions
    plan = stale(groups((1, 2), (1, 1), "2Gi"), 1)
    (flow,) = weight_flows(plan)
    assert store_bytes(plan, flow, "train", 2000 * MI) == 2 * 4 * 133 * 8 * MI
    assert store_room(plan, flow, "train") == 256 * MI
    one = stale(groups((1, 1), (1, 1), "2Gi"), 0)
    assert store_bytes(one, weight_flows(one)[0], "train", 100 * MI) == 2 * 64 * MI


def test_the_smallest_memory_for_weights():
    # 16 sources x 4 slots x 64 KiB = 4 MiB, and as much for rows
    assert least_memory(groups((2, 8), (1, 1))) == 2 * 16 * WINDOW * MIN_SLOT_BYTES == 8 * MI


def test_the_share_of_weights():
    # half of a small arena, 64 MiB of a larger one, one byte in eight from 512 MiB on
    assert [weights_share(item * MI) for item in (16, 128, 512, 1024)] == [8 * MI, 64 * MI, 64 * MI, 128 * MI]
    assert [memory_beside_weights(item * MI) for item in (1, 448, 896)] == [65 * MI, 512 * MI, 1024 * MI]
