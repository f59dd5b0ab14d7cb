"""Shards of four real ranks become full tensors on everybody, or on some sources a share each."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from rljob_worker.engines.fsdp import FSDPEngine, TrainSettings
from rljob_worker.engines.fsdp.full_tensors import Named, buckets, buckets_at, full_tensors, tensors_at
from rljob_worker.engines.models import random_policy
from rljob_worker.engines.tests.builders import mesh_of_all, run_ranks, write_config

CPU = torch.device("cpu")
LIMIT = 64
"""Bytes of a bucket: 16 float32."""
SHAPES = [(3, 4), (1,), (9, 2), (5,), (2, 2, 2), (7,), (40,), (4, 4)]
"""48, 4, 72 (alone), 20 + 32, 28, 160 (alone), 64 bytes: buckets 01 2 34 5 6 7."""
BUCKETS = [["t0", "t1"], ["t2"], ["t3", "t4"], ["t5"], ["t6"], ["t7"]]
SOURCES = [[0], [3], [2, 0], [1, 3, 2], [0, 1, 2, 3], [3, 1, 0, 2]]


def whole(dtype: torch.dtype = torch.float32) -> list[Named]:
    generator = torch.Generator().manual_seed(0)
    return [(f"t{i}", torch.randn(shape, generator=generator).to(dtype)) for i, shape in enumerate(SHAPES)]


def sharded(mesh: DeviceMesh, tensors: list[Named] | None = None) -> list[Named]:
    """As FSDP does it: dim 0 in chunks of ceil(rows / ranks), of which the last ranks may have none."""
    rank, ranks = mesh.get_local_rank(), mesh.size()
    named = []
    for name, tensor in tensors or whole():
        chunks = tensor.chunk(ranks)
        mine = chunks[rank] if rank < len(chunks) else tensor.new_empty((0, *tensor.shape[1:]))
        shard = DTensor.from_local(
            mine.clone(), mesh, [Shard(0)], run_check=False, shape=tensor.shape, stride=tensor.stride()
        )
        named.append((name, shard))
    return named


class Traffic:
    """Stands in front of torch.distributed and counts what is gathered where."""

    def __init__(self) -> None:
        self.gathers: list[tuple[int, int]] = []
        """(rank that gets, bytes that it has room for here), one of every bucket."""
        self._gather, self._all_gather = dist.gather, dist.all_gather_single

    def gather(self, tensor: torch.Tensor, parts: list[torch.Tensor] | None, *, group_dst: int, **more: Any) -> Any:
        self.gathers.append((group_dst, sum(part.nbytes for part in parts or [])))
        return self._gather(tensor, parts, group_dst=group_dst, **more)

    def all_gather_single(self, *arguments: Any, **more: Any) -> Any:
        self.gathers.append((-1, 0))
        return self._all_gather(*arguments, **more)


def gather_everything(rank: int, path: str) -> dict[str, Any]:
    traffic = Traffic()
    dist.gather, dist.all_gather_single = traffic.gather, traffic.all_gather_single  # type: ignore[assignment]
    group = dist.group.WORLD
    mesh = DeviceMesh.from_group(group, "cpu")
    found: dict[str, Any] = {"everybody": copied(full_tensors(sharded(mesh), bucket_bytes=LIMIT))}
    found["all gathers"] = len(traffic.gathers)
    for sources in SOURCES:
        for dtype in (None, torch.bfloat16):
            traffic.gathers.clear()
            named = copied(
                tensors_at(sharded(mesh), group, sources, dtype, bucket_bytes=LIMIT if dtype is None else 32)
            )
            found[f"{sources} {dtype}"] = named, list(traffic.gathers)
    traffic.gathers.clear()
    found["replicated"] = copied(tensors_at(whole(), group, [2, 1], bucket_bytes=LIMIT)), list(traffic.gathers)
    layers = [(f"layer{i}", torch.zeros(8, 16)) for i in range(64)]
    found["bytes"] = [
        sum(tensor.nbytes for _, tensor in tensors_at(sharded(mesh, layers), group, sources, bucket_bytes=1024))
        for sources in SOURCES
    ]
    found["places"] = [tensor.data_ptr() for _, tensor in tensors_at(sharded(mesh), group, [0], bucket_bytes=1)]
    pair = dist.new_group([1, 3], use_local_synchronization=True) if rank in (1, 3) else None
    if pair is not None:
        two = DeviceMesh.from_group(pair, "cpu")
        found["pair"] = copied(full_tensors(sharded(two))), copied(tensors_at(sharded(two), pair, [1]))
    engine = FSDPEngine(random_policy(path, torch.float32, 0), TrainSettings(precision="BFloat16"), CPU, mesh_of_all())
    found["engine"] = copied(chain.from_iterable(engine.weight_buckets([1, 2], bucket_bytes=4096)))
    found["rounds"] = [sum(1 for _ in bucket) for bucket in buckets_at(sharded(mesh), group, [3, 0], None, LIMIT)]
    found["default"] = copied(engine.weights())
    found["masters"] = copied(chain.from_iterable(engine.weight_buckets([0], torch.float32)))
    return found


def copied(named: Any) -> list[Named]:
    return [(name, tensor.clone()) for name, tensor in named]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What four ranks found, once for all tests."""
    directory = tmp_path_factory.mktemp("ranks")
    return run_ranks(4, gather_everything, directory, write_config(directory / "model", tie_word_embeddings=True))


def assert_same(found: list[Named], expected: list[Named]) -> None:
    assert [name for name, _ in found] == [name for name, _ in expected]
    for (name, left), (_, right) in zip(found, expected, strict=True):
        assert left.dtype == right.dtype and torch.equal(left, right), name


def test_everybody_gets_every_tensor_in_order(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert_same(rank["everybody"], whole())
        assert rank["all gathers"] == len(BUCKETS)


def test_some_ranks_of_the_world_gather_among_themselves(ranks: list[dict[str, Any]]) -> None:
    for rank, at_the_second in [(1, []), (3, whole())]:
        everybody, source = ranks[rank]["pair"]
        assert_same(everybody, whole())
        assert_same(source, at_the_second)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("sources", SOURCES)
def test_every_source_gets_its_share_and_no_other_rank_any(
    ranks: list[dict[str, Any]], sources: list[int], dtype: torch.dtype | None
) -> None:
    tensors = dict(whole(dtype or torch.float32))
    for rank, found in enumerate(ranks):
        named, gathers = found[f"{sources} {dtype}"]
        mine = [bucket for i, bucket in enumerate(BUCKETS) if sources[i % len(sources)] == rank]
        assert_same(named, [(name, tensors[name]) for bucket in mine for name in bucket])
        assert [where for where, _ in gathers] == [sources[i % len(sources)] for i in range(len(BUCKETS))]
        # room on the source only, for four ranks' chunks: ceil(rows / 4) rows of every tensor from each
        size = 4 if dtype is None else 2
        chunks = {name: -(-len(tensor) // 4) * (tensor.numel() // len(tensor)) * size for name, tensor in whole()}
        room = [4 * sum(map(chunks.__getitem__, bucket)) for bucket in BUCKETS]
        assert [nbytes for _, nbytes in gathers] == [
            room[i] if sources[i % len(sources)] == rank else 0 for i in range(len(BUCKETS))
        ]


def test_n_sources_send_an_nth_of_the_bytes_each(ranks: list[dict[str, Any]]) -> None:
    """64 tensors of 512 bytes, two to a bucket: 32,768 bytes, of which shares differ by a bucket at most."""
    for number, sources in enumerate(SOURCES):
        sent = [rank["bytes"][number] for rank in ranks]
        assert sum(sent) == 64 * 512
        assert all(sent[rank] == 0 for rank in range(4) if rank not in sources)
        assert all(abs(sent[source] - 64 * 512 / len(sources)) < 1024 for source in sources)


def test_what_every_rank_has_whole_is_shared_out_without_a_word(ranks: list[dict[str, Any]]) -> None:
    expected = {
        0: [],
        1: [bucket for i, bucket in enumerate(BUCKETS) if i % 2 == 1],
        2: [bucket for i, bucket in enumerate(BUCKETS) if i % 2 == 0],
        3: [],
    }
    tensors = dict(whole())
    for rank, found in enumerate(ranks):
        named, gathers = found["replicated"]
        assert_same(named, [(name, tensors[name]) for bucket in expected[rank] for name in bucket])
        assert gathers == []


def test_a_source_holds_one_bucket_in_the_memory_of_the_one_before(ranks: list[dict[str, Any]]) -> None:
    # each tensor a bucket of its own: t2 and t6 are larger than all before them
    places = ranks[0]["places"]
    assert len(set(places[:2])) == len(set(places[2:6])) == len(set(places[6:])) == 1
    assert [rank["places"] for rank in ranks[1:]] == [[], [], []]


def test_an_engine_sends_in_the_precision_of_the_job_what_it_keeps_in_another(ranks: list[dict[str, Any]]) -> None:
    masters = ranks[0]["masters"]
    assert {tensor.dtype for _, tensor in masters} == {torch.float32} and ranks[1]["masters"] == []
    sent = [(name, tensor.bfloat16()) for name, tensor in masters]
    for rank in ranks:
        assert_same(rank["default"], sent)
    assert [bool(rank["engine"]) for rank in ranks] == [False, True, True, False]
    together = dict(ranks[1]["engine"] + ranks[2]["engine"])
    assert len(together) == len(ranks[1]["engine"]) + len(ranks[2]["engine"])
    assert_same([(name, together[name]) for name, _ in sent], sent)
    assert "model.embed_tokens.weight" in together and "lm_head.weight" not in together, "tied weights come once"


def test_buckets_are_full_but_not_fuller() -> None:
    found = list(buckets(whole(), LIMIT))
    assert [[name for name, _ in bucket.tensors] for bucket in found] == BUCKETS
    # half the bytes as bfloat16: 24 + 2 + 36, 10 + 16 + 14, 80 alone, 32
    halved = buckets(whole(), LIMIT, torch.bfloat16)
    assert [[name for name, _ in bucket.tensors] for bucket in halved] == [
        ["t0", "t1", "t2"],
        ["t3", "t4", "t5"],
        ["t6"],
        ["t7"],
    ]


def test_tensors_of_two_dtypes_share_no_bucket() -> None:
    mixed = [("a", torch.zeros(2)), ("b", torch.zeros(2)), ("c", torch.zeros(2, dtype=torch.float64))]
    found = list(buckets(mixed, 1 << 20))
    assert [([name for name, _ in bucket.tensors], bucket.dtype) for bucket in found] == [
        (["a", "b"], torch.float32),
        (["c"], torch.float64),
    ]
    assert list(buckets([], LIMIT)) == []


def test_every_rank_gets_one_item_of_every_round(ranks: list[dict[str, Any]]) -> None:
    # buckets of 2 1 2 1 1 1 tensors go to ranks 3 and 0 in turn
    assert [rank["rounds"] for rank in ranks] == [[1, 1, 1], [0, 0, 0], [0, 0, 0], [2, 2, 1]]


def test_a_rank_alone_lends_its_own_tensors() -> None:
    tensors = whole()
    for found in (list(full_tensors(tensors)), list(tensors_at(tensors, None, [0], bucket_bytes=8))):
        assert_same(found, tensors)
        assert [tensor.data_ptr() for _, tensor in found] == [tensor.data_ptr() for _, tensor in tensors]
    (cast,) = full_tensors(tensors[:1], torch.float64)
    assert cast[1].dtype == torch.float64


@pytest.mark.parametrize("sources", [[], [0, 0], [1], [-1]])
def test_sources_are_different_ranks_of_the_group(sources: list[int]) -> None:
    with pytest.raises(AssertionError):
        list(tensors_at(whole(), None, sources))
