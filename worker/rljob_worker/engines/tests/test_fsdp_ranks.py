"""Several ranks as real processes over gloo: the numbers of one rank, and checkpoints that fit any number of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from transformers import AutoModelForCausalLM

from rljob_worker.batch import Column
from rljob_worker.engines.fsdp import BaseModel, FSDPEngine, TrainSettings
from rljob_worker.engines.models import (
    Adapter,
    WeightFiles,
    empty_policy,
    load_policy,
    random_policy,
    random_value_model,
)
from rljob_worker.engines.parallel.mesh import ProcessMesh
from rljob_worker.engines.tests.builders import (
    Distillation,
    PolicyGradient,
    a_batch,
    export_of,
    mesh_of_all,
    save,
    write_config,
    write_model,
)
from rljob_worker.engines.tests.ranks import run_ranks
from rljob_worker.engines.tests.uneven import CPU, EXACT, LENGTHS, assert_close, learn, merged, share, snapshot

IN_ONE_UNIT = replace(EXACT, min_unit_bytes=TrainSettings().min_unit_bytes)
RECOMPUTING = replace(IN_ONE_UNIT, tokens_per_micro_batch=30, activation_checkpointing=True)
REDUCING = replace(EXACT, held_bytes=0)
MIXED = TrainSettings(precision="BFloat16", learning_rate=1e-2, tokens_per_micro_batch=30)


def train_all(rank: int, path: str, checkpoint: Path) -> dict[str, Any]:
    return {
        "exact": train(rank, path, EXACT, checkpoint),
        "recomputing": train(rank, path, RECOMPUTING, None),
        "reducing": train(rank, path, REDUCING, None),
        "mixed": train(rank, path, MIXED, None),
    }


def train(rank: int, path: str, settings: TrainSettings, checkpoint: Path | None) -> dict[str, Any]:
    """What one rank saw, and the weights that it ended with after an update that was skipped."""
    ranks = mesh_of_all()
    learnt = learn(path, settings, ranks)
    engine = learnt.policy
    if checkpoint is not None:
        save(engine, checkpoint / "policy")
        export_of(engine, checkpoint / "exported")
        export_of(engine, checkpoint / "files", file_bytes=20_000)
    broken = a_batch([3, 2])
    if rank == 0:
        values = np.full(5, np.nan)
        broken = broken.with_columns({"advantages": Column.from_lengths(values, [3, 2])})
    before = snapshot(engine)
    skipped = engine.update(broken, PolicyGradient())["update/skipped_total"].value * ranks.mesh.dp
    after = snapshot(engine)
    return {
        "metrics": learnt.metrics,
        "log_probs": engine.log_probs(share(0, ranks)).values,
        "weights": after,
        "critic": snapshot(learnt.critic),
        "skipped": skipped and all(torch.equal(before[name], after[name]) for name in before),
    }


def resume(rank: int, path: str, checkpoint: Path) -> dict[str, Any]:
    """One more update from a checkpoint; a critic is saved, whose head has one row."""
    ranks = mesh_of_all()
    engine = FSDPEngine(random_policy(path, torch.float64, seed=99), EXACT, CPU, ranks)
    engine.load(checkpoint / "policy")
    loaded = snapshot(engine)
    engine.update(share(0, ranks), PolicyGradient())
    critic = FSDPEngine(random_value_model(path, torch.float64, seed=5), EXACT, CPU, ranks)
    save(critic, checkpoint / f"critic-{ranks.mesh.dp}")
    return {"loaded": loaded, "after": snapshot(engine), "critic": snapshot(critic)}


def train_adapter(rank: int, path: str, checkpoint: Path) -> dict[str, Any]:
    """Updates of an adapter in two precisions; one goes on from the other's checkpoint where there is one."""
    ranks = mesh_of_all()
    batches = [share(index, ranks) for index in range(len(LENGTHS))]
    result: dict[str, Any] = {}
    for settings in (EXACT, MIXED):
        engine = adapted(path, settings, ranks)
        for batch in batches:
            engine.update(batch, PolicyGradient())
        engine.update(batches[0], Distillation(), reference=BaseModel(engine))
        result |= {
            f"{settings.precision} weights": snapshot(engine),
            f"{settings.precision} base": BaseModel(engine).log_probs(batches[0]).values,
            f"{settings.precision} log_probs": engine.log_probs(batches[0]).values,
        }
        if ranks.mesh.dp > 1:
            save(engine, checkpoint / settings.precision)
            export_of(engine, checkpoint / f"{settings.precision} exported")
    other = adapted(path, EXACT, ranks)
    other.load(checkpoint / "Float64")
    result["loaded"] = snapshot(other)
    return result


def adapted(path: str, settings: TrainSettings, mesh: ProcessMesh) -> FSDPEngine:
    adapter = Adapter(path, rank=3, alpha=6.0, targets=("q_proj", "down_proj"))
    return FSDPEngine(empty_policy(path, settings.dtype), settings, CPU, mesh, WeightFiles.find(path), adapter)


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
            assert merged(two, index, name) == pytest.approx(merged(one, index, name), abs=1e-10), (index, name)
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
        assert merged(two, index, "update/micro_batches") > 1 or index in (2, 6)
        assert merged(two, index, "update/gradient_norm") == pytest.approx(
            merged(one, index, "update/gradient_norm"), abs=1e-10
        )
    assert_close(two[0]["weights"], one[0]["weights"], 1e-10)
    assert [rank["skipped"] for rank in two] == [True, True]


def num_collectives(rank: int, path: str) -> dict[str, dict[str, float]]:
    """In an update of a model that is as large as one may be whose gradients are held, and of one a byte larger."""
    ranks, result = mesh_of_all(), {}
    size = sum(parameter.nbytes for parameter in random_policy(path, torch.float64, 0).parameters())
    for name, held_bytes in (("held", size), ("reduced", size - 1)):
        settings = replace(EXACT, held_bytes=held_bytes)
        engine = FSDPEngine(random_policy(path, torch.float64, 0), settings, CPU, ranks)
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            metrics = engine.update(share(0, ranks), PolicyGradient())
        counts = {event.key: event.count for event in seen.key_averages()}
        result[name] = {
            "micro-batches": metrics["update/micro_batches"].value,
            "reductions": counts["c10d::_reduce_scatter_base_"],
            "gatherings": counts["c10d::_allgather_base_"],
        }
    return result


def test_gradients_of_a_model_that_is_held_are_reduced_once_in_an_optimizer_step(workplace: dict[str, Any]) -> None:
    """There are three units: two layers, and the rest. Layers that are not held are gathered for both passes of every
    micro-batch, and the rest for the first."""
    agreed = 3  # gatherings of a few numbers: counts of the mini-batch, and the norm of the gradients
    for rank in run_ranks(2, num_collectives, workplace["directory"] / "counted", workplace["path"]):
        number = rank["reduced"]["micro-batches"]
        assert rank["held"] == {"micro-batches": number, "reductions": 3, "gatherings": 3 + agreed} and number > 1
        assert rank["reduced"] == {
            "micro-batches": number,
            "reductions": 3 * number,
            "gatherings": (2 * 2 + 1) * number + agreed,
        }


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
