"""Shards and parts of four real ranks become full tensors on everybody, or on some sources a share each."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from rljob_api.pipeline.meshes import Mesh
from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.engines.fsdp import FSDPEngine, TrainSettings
from rljob_worker.engines.fsdp.tensors.buckets import Named, Scattered, buckets
from rljob_worker.engines.fsdp.tensors.full import buckets_at, full_tensors
from rljob_worker.engines.fsdp.tensors.parts import Parts
from rljob_worker.engines.models import random_policy
from rljob_worker.engines.parallel.mesh import build_meshes
from rljob_worker.engines.tests.builders import mesh_of_all, write_config
from rljob_worker.engines.tests.ranks import run_ranks

CPU = torch.device("cpu")
LIMIT = 64
"""Bytes of a bucket: 16 float32."""
SHAPES = [(3, 4), (1,), (9, 2), (5,), (2, 2, 2), (7,), (40,), (4, 4)]
"""48, 4, 72 (alone), 20 + 32, 28, 160 (alone), 64 bytes: buckets 01 2 34 5 6 7."""
BUCKETS = [["t0", "t1"], ["t2"], ["t3", "t4"], ["t5"], ["t6"], ["t7"]]
SOURCES = [[0], [3], [2, 0], [1, 3, 2], [0, 1, 2, 3], [3, 1, 0, 2]]
ALONE = Parts(0, None, None, None, None, None)
MESHES = [
    Mesh(dp=2, tp=2),
    Mesh(tp=4),
    Mesh(dp=4, ep=2),
    Mesh(dp=2, cp=2, ep=4),
    Mesh(dp=2, tp=2, ep=4),
    Mesh(dp=2, rp=2, tp=2),
    Mesh(dp=4, rp=2, ep=2),
]
LAYER = {
    "embed_tokens.weight": (9, 4),
    "q_proj.weight": (12, 5),  # by rows: of two parts one rank has 3 of 6, of four all 3
    "q_proj.bias": (12,),
    "o_proj.weight": (5, 12),  # by columns, and its 5 rows over ranks
    "norm.weight": (7,),
    "experts.down_proj": (8, 3, 2),
}
"""Names tell what ranks split: matrices, experts, neither."""


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


def over(group: Any) -> Parts:
    """The parts of ranks that split nothing."""
    return Parts(group.rank(), group, group, None, None, None)


def layer(shapes: dict[str, tuple[int, ...]]) -> list[Named]:
    """Counted from 0 on, so that every number is where it is."""
    return [(name, torch.arange(torch.Size(shape).numel()).float().view(shape)) for name, shape in shapes.items()]


def split(parts: Parts, tensors: list[Named]) -> list[Named]:
    """What this rank has of whole tensors: its rows of its part."""
    named = []
    for name, tensor in tensors:
        share = parts.split.share(name)
        group = parts.expert_shards if share is not None and share.axis == "ep" else parts.shards
        part = tensor if share is None else share.of(tensor)
        named += [(name, part)] if group is None else sharded(DeviceMesh.from_group(group, "cpu"), [(name, part)])
    return named


class Traffic:
    """Stands in front of torch.distributed and counts what is gathered where."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.gathers: list[tuple[int, int]] = []
        """(rank that gets, bytes that it has room for here), one of every bucket."""
        self.given: list[int] = []
        """Bytes that other ranks get from this one, one of every gather."""
        self._gather, self._all_gather = dist.gather, dist.all_gather_single
        patch.setattr(dist, "gather", self.gather)
        patch.setattr(dist, "all_gather_single", self.all_gather_single)

    def gather(self, tensor: torch.Tensor, parts: list[torch.Tensor] | None, *, group_dst: int, **more: Any) -> Any:
        self.gathers.append((group_dst, sum(part.nbytes for part in parts or [])))
        self.given.append(tensor.nbytes if parts is None else 0)
        return self._gather(tensor, parts, group_dst=group_dst, **more)

    def all_gather_single(self, *arguments: Any, **more: Any) -> Any:
        self.gathers.append((-1, 0))
        return self._all_gather(*arguments, **more)


def tensors_at(*arguments: Any, **more: Any) -> Iterator[Named]:
    return chain.from_iterable(buckets_at(*arguments, **more))


def gather_everything(rank: int, path: str) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        return gather_with(Traffic(patch), rank, path)


def gather_with(traffic: Traffic, rank: int, path: str) -> dict[str, Any]:
    group = dist.group.WORLD
    mesh, parts = DeviceMesh.from_group(group, "cpu"), over(group)
    result: dict[str, Any] = {"everybody": copied(full_tensors(sharded(mesh), parts, bucket_bytes=LIMIT))}
    result["all gathers"] = len(traffic.gathers)
    for sources in SOURCES:
        for dtype in (None, torch.bfloat16):
            traffic.gathers.clear()
            named = copied(
                tensors_at(sharded(mesh), parts, sources, dtype, bucket_bytes=LIMIT if dtype is None else 32)
            )
            result[f"{sources} {dtype}"] = named, list(traffic.gathers)
    traffic.gathers.clear()
    result["replicated"] = copied(tensors_at(whole(), parts, [2, 1], bucket_bytes=LIMIT)), list(traffic.gathers)
    layers = [(f"layer{i}", torch.zeros(8, 16)) for i in range(64)]
    result["bytes"] = [
        sum(tensor.nbytes for _, tensor in tensors_at(sharded(mesh, layers), parts, sources, bucket_bytes=1024))
        for sources in SOURCES
    ]
    result["places"] = [tensor.data_ptr() for _, tensor in tensors_at(sharded(mesh), parts, [0], bucket_bytes=1)]
    meshes = build_meshes(MESHES, rank, CPU, deadline_seconds=TEST_TIMEOUT_SECONDS)
    pair = meshes[MESHES[0]].group("dp")
    if rank in (1, 3):
        two = DeviceMesh.from_group(pair, "cpu")
        result["pair"] = (
            copied(full_tensors(sharded(two), over(pair))),
            copied(tensors_at(sharded(two), over(pair), [1])),
        )
    engine = FSDPEngine(random_policy(path, torch.float32, 0), TrainSettings(precision="BFloat16"), CPU, mesh_of_all())
    result["engine"] = copied(chain.from_iterable(engine.weight_buckets([1, 2], bucket_bytes=4096)))
    result["rounds"] = [sum(1 for _ in bucket) for bucket in buckets_at(sharded(mesh), parts, [3, 0], None, LIMIT)]
    result["default"] = copied(engine.weights())
    result["masters"] = copied(chain.from_iterable(engine.weight_buckets([0], torch.float32)))
    result["split"] = [gather_parts(Parts.of(meshes[mesh]), traffic) for mesh in MESHES]
    return result


def gather_parts(parts: Parts, traffic: Traffic) -> dict[str, Any]:
    """Gather a layer that ranks of a mesh split."""
    mine = split(parts, layer(LAYER))
    result: dict[str, Any] = {"everybody": copied(full_tensors(mine, parts, bucket_bytes=500))}
    result["sources"] = [
        copied(tensors_at(split(parts, layer(LAYER)), parts, sources, dtype, bucket_bytes=500))
        for sources in SOURCES
        for dtype in (None, torch.bfloat16)
    ]
    traffic.given.clear()
    even = {"norm.weight": (8,), "q_proj.weight": (8, 4), "o_proj.weight": (4, 8), "embed_tokens.weight": (8, 8)}
    buckets_of_two = buckets_at(split(parts, layer(even)), parts, [3, 0], bucket_bytes=288)
    result["names"] = [name for bucket in buckets_of_two for name, _ in bucket]
    result["given"] = list(traffic.given)
    return result


def copied(named: Any) -> list[Named]:
    return [(name, tensor.clone()) for name, tensor in named]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What four ranks found, once for all tests."""
    directory = tmp_path_factory.mktemp("ranks")
    return run_ranks(4, gather_everything, directory, write_config(directory / "model", tie_word_embeddings=True))


def assert_same(result: list[Named], expected: list[Named]) -> None:
    assert [name for name, _ in result] == [name for name, _ in expected]
    for (name, left), (_, right) in zip(result, expected, strict=True):
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
    for rank, result in enumerate(ranks):
        named, gathers = result[f"{sources} {dtype}"]
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
    for rank, result in enumerate(ranks):
        named, gathers = result["replicated"]
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


@pytest.mark.parametrize("number", range(len(MESHES)), ids=[repr(mesh) for mesh in MESHES])
def test_what_ranks_split_gets_whole_for_everybody(ranks: list[dict[str, Any]], number: int) -> None:
    for rank in ranks:
        assert_same(rank["split"][number]["everybody"], layer(LAYER))


@pytest.mark.parametrize("number", range(len(MESHES)), ids=[repr(mesh) for mesh in MESHES])
def test_what_ranks_split_gets_whole_at_its_source_alone(ranks: list[dict[str, Any]], number: int) -> None:
    """144 + 240 + 48, 240 + 28 + 192 bytes: two buckets in float32, one of half as many in bfloat16."""
    names = list(LAYER)
    for case, (sources, dtype) in enumerate((s, d) for s in SOURCES for d in (torch.float32, torch.bfloat16)):
        tensors = {name: tensor.to(dtype) for name, tensor in layer(LAYER)}
        expected = {rank: list[Named]() for rank in range(4)}
        for at, bucket in enumerate([names[:3], names[3:]] if dtype == torch.float32 else [names]):
            expected[sources[at % len(sources)]] += [(name, tensors[name]) for name in bucket]
        for rank, result in enumerate(ranks):
            assert_same(result["split"][number]["sources"][case], expected[rank])


def test_of_what_ranks_split_every_byte_travels_once(ranks: list[dict[str, Any]]) -> None:
    """Two copies of two parts. Rank 3 gets 32 + 128 + 128 bytes, rank 0 the other 256.

    To rank 3: of the norm, which it has half of, rank 1 gives the other 16 bytes, of the two matrices every rank 64.
    To rank 0: of the embedding rank 2 gives 128. Nobody else takes part.
    """
    result = [rank["split"][0] for rank in ranks]
    assert [item["given"] for item in result] == [[64, 0], [16, 64], [64, 128], [0, 0]]
    assert [item["names"] for item in result] == [
        ["embed_tokens.weight"],
        [],
        [],
        ["norm.weight", "q_proj.weight", "o_proj.weight"],
    ]


def test_buckets_are_full_but_not_fuller() -> None:
    result = list(buckets(scattered(whole()), LIMIT))
    assert [[tensor.name for tensor in bucket.tensors] for bucket in result] == BUCKETS
    # half the bytes as bfloat16: 24 + 2 + 36, 10 + 16 + 14, 80 alone, 32
    halved = buckets(scattered(whole()), LIMIT, torch.bfloat16)
    assert [[tensor.name for tensor in bucket.tensors] for bucket in halved] == [
        ["t0", "t1", "t2"],
        ["t3", "t4", "t5"],
        ["t6"],
        ["t7"],
    ]


def scattered(named: list[Named]) -> list[Scattered]:
    """As they are on a rank that has them whole."""
    return list(ALONE.scattered(named))


def test_tensors_of_two_dtypes_share_no_bucket() -> None:
    mixed = [("a", torch.zeros(2)), ("b", torch.zeros(2)), ("c", torch.zeros(2, dtype=torch.float64))]
    result = list(buckets(scattered(mixed), 1 << 20))
    assert [([tensor.name for tensor in bucket.tensors], bucket.dtype) for bucket in result] == [
        (["a", "b"], torch.float32),
        (["c"], torch.float64),
    ]
    assert list(buckets([], LIMIT)) == []


def test_every_rank_gets_one_item_of_every_round(ranks: list[dict[str, Any]]) -> None:
    # buckets of 2 1 2 1 1 1 tensors go to ranks 3 and 0 in turn
    assert [rank["rounds"] for rank in ranks] == [[1, 1, 1], [0, 0, 0], [0, 0, 0], [2, 2, 1]]


def test_a_rank_alone_lends_its_own_tensors() -> None:
    tensors = whole()
    for result in (list(full_tensors(tensors, ALONE)), list(tensors_at(tensors, ALONE, [0], bucket_bytes=8))):
        assert_same(result, tensors)
        assert [tensor.data_ptr() for _, tensor in result] == [tensor.data_ptr() for _, tensor in tensors]
    (cast,) = full_tensors(tensors[:1], ALONE, torch.float64)
    assert cast[1].dtype == torch.float64


@pytest.mark.parametrize("sources", [[], [0, 0], [1], [-1]])
def test_sources_are_different_ranks_of_the_group(sources: list[int]) -> None:
    with pytest.raises(AssertionError):
        list(tensors_at(whole(), ALONE, sources))
