"""Replicas that share out weights each for itself, as real processes over gloo: the numbers of one rank, gradients that
are added up once, and every shard written once."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from rljob_api.pipeline.meshes import Mesh
from rljob_worker.engines.fsdp import FSDPEngine, TrainSettings
from rljob_worker.engines.fsdp.checkpoint.place_files import PlaceReader
from rljob_worker.engines.fsdp.collectives import Agreement
from rljob_worker.engines.models import load_policy, random_policy
from rljob_worker.engines.parallel.shards import local_part
from rljob_worker.engines.tests.builders import PolicyGradient, mesh_here, some_slow, write_config
from rljob_worker.engines.tests.ranks import run_ranks
from rljob_worker.engines.tests.test_spread_models import (
    AT_ONCE,
    BALANCED,
    SHARED,
    assert_went_on_alike,
    go_on,
    train,
    write,
)
from rljob_worker.engines.tests.uneven import CPU, EXACT, assert_close, assert_trained_alike, share, snapshot

PAIRS = Mesh(dp=4, rp=2)
DENSE = {
    "a rank each": Mesh(dp=2, rp=2),
    "pairs": PAIRS,
    "pairs that split matrices": Mesh(dp=2, rp=2, tp=2),
    "pairs that share sequences": Mesh(dp=2, rp=2, cp=2),
}
EXPERTS = {"pairs": PAIRS, "pairs that share experts": Mesh(dp=4, rp=2, ep=2)}
REDUCING = replace(SHARED, held_bytes=0)
KEPT = {("pairs that share sequences", "reduced every time")}
"""Others are in the slow tier: pairs that share experts hold gradients, and pairs that split matrices go on from a
checkpoint."""
MIXED = TrainSettings(precision="BFloat16", learning_rate=1e-2, tokens_per_micro_batch=7, held_bytes=0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_config(tmp_path_factory.mktemp("model"), "qwen3", tie_word_embeddings=True)


@pytest.fixture(scope="module")
def one(model: str) -> dict[str, Any]:
    return train(0, model, Mesh(), replace(EXACT, tokens_per_micro_batch=AT_ONCE))


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        pytest.param(name, settings, id=f"{name}, {kind}", marks=() if (name, kind) in KEPT else pytest.mark.slow)
        for name in DENSE
        for kind, settings in {"held": SHARED, "reduced every time": REDUCING}.items()
    ],
)
def test_replicas_train_like_one_rank(
    tmp_path: Path, model: str, one: dict[str, Any], name: str, settings: TrainSettings
) -> None:
    ranks = run_ranks(DENSE[name].size, train, tmp_path / "ranks", model, DENSE[name], settings)
    assert_trained_alike(ranks, DENSE[name], one)
    for rank in ranks:
        assert_close(rank["weights"], ranks[0]["weights"], 0.0)  # nothing would bring replicas together again


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERTS)
def test_replicas_of_a_model_with_experts_train_like_one_rank(tmp_path: Path, name: str) -> None:
    path = write_config(tmp_path / "model", "qwen3_moe")
    one = train(0, path, Mesh(), replace(BALANCED, tokens_per_micro_batch=AT_ONCE))
    ranks = run_ranks(EXPERTS[name].size, train, tmp_path / "ranks", path, EXPERTS[name], BALANCED)
    assert_trained_alike(ranks, EXPERTS[name], one)


class AddedUp:
    """Stands in front of torch.distributed and counts what a rank adds up with other replicas."""

    def __init__(self, replicas: dist.ProcessGroup) -> None:
        self.bytes = 0
        self._replicas, self._all_reduce = replicas, dist.all_reduce

    def all_reduce(self, tensor: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        if options.get("group") is self._replicas:
            self.bytes += tensor.nbytes
        return self._all_reduce(tensor, *arguments, **options)


def count(rank: int, path: str, settings: TrainSettings) -> dict[str, Any]:
    """An update of several micro-batches."""
    ranks = mesh_here(PAIRS)
    engine = FSDPEngine(random_policy(path, settings.master_dtype, 0), settings, CPU, ranks)
    replicas = ranks.group("rp")
    assert replicas is not None
    added_up = AddedUp(replicas)
    dist.all_reduce = added_up.all_reduce
    metrics = engine.update(share(0, ranks), PolicyGradient())
    dist.all_reduce = added_up._all_reduce
    parameters = dict(engine.model.named_parameters())
    return {
        "bytes": added_up.bytes,
        "shapes": {name: tuple(p.shape) for name, p in parameters.items()},
        "own": sum(local_part(p).numel() for p in parameters.values()),
        "micro-batches": metrics["update/micro_batches"].value,
        "weights": snapshot(engine),
    }


@pytest.mark.parametrize(
    "settings", some_slow([SHARED, REDUCING, MIXED], SHARED, MIXED), ids=["held", "reduced every time", "mixed"]
)
def test_replicas_add_up_a_shard_of_the_gradients_once_in_an_optimizer_step(
    tmp_path: Path, model: str, settings: TrainSettings
) -> None:
    ranks = run_ranks(4, count, tmp_path / "ranks", model, settings)
    half = sum((shape[0] + 1) // 2 * prod(shape[1:]) for shape in ranks[0]["shapes"].values())
    for rank in ranks:
        assert rank["micro-batches"] > 1
        assert rank["bytes"] == half * settings.master_dtype.itemsize
        assert rank["own"] <= half
        assert_close(rank["weights"], ranks[0]["weights"], 0.0)


def norms(rank: int) -> tuple[float, float]:
    """Norms of shards that replicas have alike: of a whole gradient, and of one that pairs of ranks split."""
    shards, parts = mesh_here(PAIRS), mesh_here(Mesh(dp=2, rp=2, tp=2))
    own = [torch.tensor([[3.0], [4.0]][rank % 2], dtype=torch.float64)]
    return Agreement(shards).gradient_norm(own, []), Agreement(parts).gradient_norm([], own)


def test_each_shard_counts_once_in_the_norm_of_the_gradients(tmp_path: Path) -> None:
    # 3, 4 make 5; with replicas each twice the root of 50
    assert run_ranks(4, norms, tmp_path) == [(5.0, 5.0)] * 4


@pytest.fixture(scope="module")
def written(model: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    directory = tmp_path_factory.mktemp("written")
    return directory, run_ranks(4, write, directory / "ranks", model, PAIRS, directory)


def test_every_shard_is_written_once_and_replicas_write_alike(written: tuple[Path, list[dict[str, Any]]]) -> None:
    index = PlaceReader(written[0] / "checkpoint").read_metadata()
    for name, result in index.state_dict_metadata.items():
        assert sum(prod(chunk.sizes) for chunk in result.chunks) == prod(result.size), name
    numbers = dict.fromkeys((f"__{rank}_0.distcp" for rank in range(4)), 0)
    for shard, place in index.storage_data.items():
        chunks = index.state_dict_metadata[shard.fqn].chunks
        numbers[place.relative_path] += next(prod(chunk.sizes) for chunk in chunks if chunk.offsets == shard.offset)
    first, second, third, fourth = numbers.values()
    # with at most half of the largest, 48 x 32, between them
    assert abs(first - third) <= 24 * 32 and abs(second - fourth) <= 24 * 32 and first > 10_000


@pytest.mark.parametrize(
    "mesh", some_slow([Mesh(), Mesh(dp=2), Mesh(dp=2, rp=2, tp=2)], Mesh(), Mesh(dp=2, rp=2, tp=2)), ids=str
)
def test_replicas_go_on_in_another_layout(
    tmp_path: Path, model: str, written: tuple[Path, list[dict[str, Any]]], mesh: Mesh
) -> None:
    directory, before = written
    after = run_ranks(mesh.size, go_on, tmp_path / "ranks", model, mesh, directory)
    assert_went_on_alike(after, before)


def test_other_layouts_go_on_as_replicas(tmp_path: Path, model: str) -> None:
    before = run_ranks(2, write, tmp_path / "before", model, Mesh(tp=2), tmp_path)
    assert_went_on_alike(run_ranks(4, go_on, tmp_path / "after", model, PAIRS, tmp_path), before)


def test_replicas_export_one_model_side_by_side(model: str, written: tuple[Path, list[dict[str, Any]]]) -> None:
    directory, _ = written
    engine = FSDPEngine(random_policy(model, torch.float64, 99), EXACT, CPU)
    engine.load(directory / "checkpoint")
    for place in ("exported", "files"):
        exported = load_policy(str(directory / place), torch.float64, CPU)
        assert_close(dict(exported.named_parameters()), snapshot(engine), 0.0)
    assert len(list((directory / "files").glob("*.safetensors"))) > 3


def test_sources_of_several_replicas_get_every_tensor_once(
    model: str, written: tuple[Path, list[dict[str, Any]]]
) -> None:
    first, *others, last = (rank["own"] for rank in written[1])
    assert first and last and others == [[], []]
    names = [name for name, _ in FSDPEngine(random_policy(model, torch.float64, 0), EXACT, CPU).weights()]
    assert sorted(first + last) == sorted(names)
