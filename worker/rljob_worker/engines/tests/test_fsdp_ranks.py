"""Several ranks as real processes over gloo: the numbers of one rank, and checkpoints that fit any number of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM

from rljob_worker.batch import Batch, Column
from rljob_worker.engines.fsdp import FSDPEngine, TrainSettings
from rljob_worker.engines.fsdp.export import export
from rljob_worker.engines.mesh import ProcessMesh
from rljob_worker.engines.models import (
    Adapter,
    WeightFiles,
    empty_policy,
    load_policy,
    random_policy,
    random_value_model,
)
from rljob_worker.engines.tests.builders import (
    Distillation,
    PolicyGradient,
    ValueRegression,
    a_batch,
    mesh_of_all,
    run_ranks,
    save,
    write_config,
    write_model,
)

CPU = torch.device("cpu")
EXACT = TrainSettings(
    temperature=0.8,
    precision="Float64",
    learning_rate=1e-2,
    tokens_per_micro_batch=14,
    max_grad_norm=0.5,
    min_unit_bytes=0,  # every layer a unit of its own; below the whole model is one
)
RECOMPUTING = TrainSettings(
    temperature=0.8,
    precision="Float64",
    learning_rate=1e-2,
    tokens_per_micro_batch=30,
    max_grad_norm=0.5,
    activation_checkpointing=True,
)
REDUCING = replace(EXACT, held_bytes=0)
MIXED = TrainSettings(precision="BFloat16", learning_rate=1e-2, tokens_per_micro_batch=30)

# rows per rank of three mini-batches: uneven, one rank without rows, and a rank whose only row is empty
LENGTHS = [[5, 1, 9, 3, 7, 2], [4, 8], [6, 2, 0]]
FIRST_RANK = [4, 2, 2]


def share(batch: Batch, index: int, rank: int, world_size: int) -> Batch:
    """This rank's rows of mini-batch `index`; ranks past the first two have none."""
    rows = np.arange(len(batch))
    if world_size == 1:
        return batch
    return batch.take(rows[: FIRST_RANK[index]] if rank == 0 else rows[FIRST_RANK[index] :] if rank == 1 else [])


def train_all(rank: int, path: str, checkpoint: Path) -> dict[str, Any]:
    return {
        "exact": train(rank, path, EXACT, checkpoint),
        "recomputing": train(rank, path, RECOMPUTING, None),
        "reducing": train(rank, path, REDUCING, None),
        "mixed": train(rank, path, MIXED, None),
    }


def train(rank: int, path: str, settings: TrainSettings, checkpoint: Path | None) -> dict[str, Any]:
    """Three updates of a policy, one of a critic; what every rank saw."""
    world_size = dist.get_world_size() if dist.is_initialized() else 1
    mesh = mesh_of_all()
    engine = FSDPEngine(random_policy(path, settings.master_dtype, 0), settings, CPU, mesh)
    critic = FSDPEngine(random_value_model(path, settings.master_dtype, 0), settings, CPU, mesh)
    frozen = replace(settings, trainable=False)
    reference = FSDPEngine(random_policy(path, settings.master_dtype, 7), frozen, CPU, mesh)
    batches = [share(a_batch(lengths), index, rank, world_size) for index, lengths in enumerate(LENGTHS)]
    metrics = [engine.update(batch, PolicyGradient()) for batch in batches]
    metrics.append(critic.update(batches[0], ValueRegression()))
    metrics += [engine.update(batch, Distillation(), reference=reference) for batch in batches]
    if checkpoint is not None:
        save(engine, checkpoint / "policy")
        engine.export(checkpoint / "exported")
        export(engine.model, checkpoint / "files", engine.parts, torch.float64, file_bytes=20_000)
    broken = a_batch([3, 2])
    if rank == 0:
        values = np.full(5, np.nan)
        broken = broken.with_columns({"advantages": Column.from_lengths(values, [3, 2])})
    before = snapshot(engine)
    skipped = engine.update(broken, PolicyGradient())["update/skipped_total"].value * world_size
    after = snapshot(engine)
    return {
        "metrics": metrics,
        "log_probs": engine.log_probs(batches[0]).values,
        "weights": after,
        "critic": snapshot(critic),
        "skipped": skipped and all(torch.equal(before[name], after[name]) for name in before),
    }


def resume(rank: int, path: str, checkpoint: Path) -> dict[str, Any]:
    """One more update from a checkpoint; a critic is saved, whose head has one row."""
    mesh = mesh_of_all()
    world_size = dist.get_world_size() if dist.is_initialized() else 1
    engine = FSDPEngine(random_policy(path, torch.float64, seed=99), EXACT, CPU, mesh)
    engine.load(checkpoint / "policy")
    loaded = snapshot(engine)
    engine.update(share(a_batch(LENGTHS[0]), 0, rank, world_size), PolicyGradient())
    critic = FSDPEngine(random_value_model(path, torch.float64, seed=5), EXACT, CPU, mesh)
    save(critic, checkpoint / f"critic-{world_size}")
    return {"loaded": loaded, "after": snapshot(engine), "critic": snapshot(critic)}


def train_adapter(rank: int, path: str, checkpoint: Path) -> dict[str, Any]:
    """Updates of an adapter in two precisions; one goes on from the other's checkpoint where there is one."""
    world_size = dist.get_world_size() if dist.is_initialized() else 1
    mesh, batches = mesh_of_all(), [share(a_batch(each), i, rank, world_size) for i, each in enumerate(LENGTHS)]
    found: dict[str, Any] = {}
    for settings in (EXACT, MIXED):
        engine = adapted(path, settings, mesh)
        for batch in batches:
            engine.update(batch, PolicyGradient())
        engine.update(batches[0], Distillation(), reference=engine.base)
        found |= {
            f"{settings.precision} weights": snapshot(engine),
            f"{settings.precision} base": engine.base.log_probs(batches[0]).values,
            f"{settings.precision} log_probs": engine.log_probs(batches[0]).values,
        }
        if world_size > 1:
            save(engine, checkpoint / settings.precision)
            engine.export(checkpoint / f"{settings.precision} exported")
    other = adapted(path, EXACT, mesh)
    other.load(checkpoint / "Float64")
    found["loaded"] = snapshot(other)
    return found


def adapted(path: str, settings: TrainSettings, mesh: ProcessMesh) -> FSDPEngine:
    adapter = Adapter(path, rank=3, alpha=6.0, targets=("q_proj", "down_proj"))
    return FSDPEngine(empty_policy(path, settings.dtype), settings, CPU, mesh, WeightFiles.find(path), adapter)


def snapshot(engine: FSDPEngine) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in engine.weights(dtype=engine.settings.master_dtype)}


def assert_close(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor], tolerance: float) -> None:
    assert left.keys() == right.keys()
    for name in left:
        assert float((left[name] - right[name]).detach().abs().max()) <= tolerance, name


def summed(ranks: list[dict[str, Any]], index: int, name: str) -> float:
    """A metric of one update merged over ranks."""
    from rljob_worker.scalars import Scalar

    return Scalar.merge([rank["metrics"][index][name] for rank in ranks if name in rank["metrics"][index]]).value


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Two ranks train once for all tests."""
    directory = tmp_path_factory.mktemp("ranks")
    path = write_config(directory / "model", "qwen3", tie_word_embeddings=True)
    runs = run_ranks(2, train_all, directory / "two", path, directory / "checkpoint")
    two = {name: [rank[name] for rank in runs] for name in runs[0]}
    return {"path": path, "two": two["exact"], **two, "one": [train(0, path, EXACT, None)], "directory": directory}


def test_two_ranks_train_like_one(workplace: dict[str, Any]) -> None:
    one, two = workplace["one"], workplace["two"]
    for index in range(7):
        names = ["update/loss", "update/gradient_norm"] + (["entropy"] if index < 3 else [])
        for name in names:
            assert summed(two, index, name) == pytest.approx(summed(one, index, name), abs=1e-10), (index, name)
    for rank in two:
        assert_close(rank["weights"], one[0]["weights"], 1e-10)
        assert_close(rank["critic"], one[0]["critic"], 1e-10)
    scores = np.concatenate([rank["log_probs"] for rank in two])
    np.testing.assert_allclose(scores, one[0]["log_probs"], atol=1e-6)


def test_one_rank_with_a_broken_gradient_makes_all_skip(workplace: dict[str, Any]) -> None:
    assert [rank["skipped"] for rank in workplace["two"]] == [True, True]


def test_a_checkpoint_of_two_ranks_goes_on_on_one_and_on_four(workplace: dict[str, Any]) -> None:
    checkpoint, path = workplace["directory"] / "checkpoint", workplace["path"]
    one = resume(0, path, checkpoint)
    four = run_ranks(4, resume, workplace["directory"] / "four", path, checkpoint)
    # the update with the broken gradient was skipped: weights at the end are those of the checkpoint
    assert_close(one["loaded"], workplace["two"][0]["weights"], 0.0)
    for rank in four:
        assert_close(rank["loaded"], one["loaded"], 0.0)
        assert_close(rank["after"], one["after"], 1e-10)
    critic = FSDPEngine(random_value_model(path, torch.float64, seed=99), EXACT, CPU, None)
    critic.load(checkpoint / "critic-4")
    assert_close(snapshot(critic), four[0]["critic"], 0.0)
    assert {path.name for path in (checkpoint / "critic-4").iterdir()} == {
        ".metadata", "__0_0.distcp", "__1_0.distcp", "__2_0.distcp", "__3_0.distcp",
    }  # fmt: skip


def test_two_ranks_export_one_model(workplace: dict[str, Any]) -> None:
    model = load_policy(str(workplace["directory"] / "checkpoint" / "exported"), torch.float64, CPU)
    assert_close(dict(model.named_parameters()), workplace["two"][0]["weights"], 0.0)
    assert model.config.architectures == ["Qwen3ForCausalLM"]


def test_ranks_write_files_side_by_side(workplace: dict[str, Any]) -> None:
    directory = workplace["directory"] / "checkpoint" / "files"
    files = sorted(path.name for path in directory.glob("*.safetensors"))
    assert len(files) > 3 and files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    stock = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float64)
    assert_close(dict(stock.named_parameters()), workplace["two"][0]["weights"], 0.0)


def test_a_model_that_is_reduced_after_every_micro_batch_learns_the_same(workplace: dict[str, Any]) -> None:
    one, two = workplace["one"], workplace["reducing"]
    for index in range(7):
        assert summed(two, index, "update/micro_batches") > 1 or index in (2, 6)
        assert summed(two, index, "update/gradient_norm") == pytest.approx(
            summed(one, index, "update/gradient_norm"), abs=1e-10
        )
    assert_close(two[0]["weights"], one[0]["weights"], 1e-10)
    assert [rank["skipped"] for rank in two] == [True, True]


def test_recomputing_and_mixed_precision_run_on_two_ranks(workplace: dict[str, Any]) -> None:
    recomputed, mixed = workplace["recomputing"], workplace["mixed"]
    assert_close(recomputed[0]["weights"], workplace["one"][0]["weights"], 1e-10)
    assert_close(mixed[0]["weights"], mixed[1]["weights"], 0.0)
    assert {tensor.dtype for tensor in mixed[0]["weights"].values()} == {torch.float32}


def test_an_adapter_is_the_same_on_one_rank_and_on_two(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model", tie_word_embeddings=True)
    two = run_ranks(2, train_adapter, tmp_path / "two", path, tmp_path / "checkpoint")
    one = train_adapter(0, path, tmp_path / "checkpoint")
    base = load_policy(path, torch.float64, CPU)
    moved = {name for name, p in base.named_parameters() if not torch.equal(one["Float64 weights"][name], p)}
    assert moved == {
        f"model.layers.{i}.{kind}.weight" for i in (0, 1) for kind in ("self_attn.q_proj", "mlp.down_proj")
    }
    for rank in two:
        assert_close(rank["Float64 weights"], one["Float64 weights"], 1e-10)
        assert_close(rank["loaded"], rank["Float64 weights"], 0.0)
        assert_close(rank["BFloat16 weights"], one["BFloat16 weights"], 2e-3)
    assert_close(one["loaded"], two[0]["loaded"], 0.0)
    for kind, tolerance in (("Float64 base", 1e-6), ("Float64 log_probs", 1e-6), ("BFloat16 base", 5e-2)):
        np.testing.assert_allclose(np.concatenate([rank[kind] for rank in two]), one[kind], atol=tolerance)
    frozen = FSDPEngine(base, replace(EXACT, trainable=False), CPU)
    np.testing.assert_allclose(one["Float64 base"], frozen.log_probs(a_batch(LENGTHS[0])).values, atol=1e-7)
    merged = load_policy(str(tmp_path / "checkpoint" / "Float64 exported"), torch.float64, CPU)
    assert_close(dict(merged.named_parameters()), two[0]["Float64 weights"], 0.0)
