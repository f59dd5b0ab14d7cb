"""Updates of models that see: on any number of ranks, in any micro-batches, with towers that learn and towers that do
not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForImageTextToText

from rljob_api.pipeline.meshes import Mesh
from rljob_worker.batch import Batch
from rljob_worker.engines.fsdp import BaseModel, FSDPEngine, TrainSettings
from rljob_worker.engines.models import Adapter, WeightFiles, empty_policy, load_policy, random_policy
from rljob_worker.engines.models.families import VISION_FAMILIES
from rljob_worker.engines.models.vision import is_of_tower
from rljob_worker.engines.parallel.mesh import ProcessMesh
from rljob_worker.engines.tests.builders import Distillation, PolicyGradient, export_of, mesh_here, save, some_slow
from rljob_worker.engines.tests.ranks import run_ranks
from rljob_worker.engines.tests.seeing import (
    DrawnPictures,
    Prompt,
    encoded,
    reader_of,
    text,
    vision_batch,
    write_vision_config,
    write_vision_model,
)
from rljob_worker.engines.tests.uneven import CPU, EXACT, assert_close, snapshot

LEARNING = replace(EXACT, tokens_per_micro_batch=40, vision_learning_rate=3e-2)
FROZEN = replace(LEARNING, vision_learning_rate=None)
SMALL, LARGE = encoded(2, 2), encoded(8, 8, 1)
"""Pictures of one feature and of sixteen."""
STEPS: list[tuple[list[Prompt], list[int]]] = [
    # the second rank of two has the last group of each: text alone, then nothing but an empty response, then all
    ([[text(3), SMALL, text(2, 1)], [LARGE, text(4)], [text(6)]], [4, 7, 3, 2, 5, 1]),
    ([[SMALL, text(2), LARGE], [LARGE]], [6, 2, 0, 0]),
    ([[text(4)], [text(2), LARGE, text(1)]], [3, 3, 8, 5]),
]


def part(index: int, ranks: ProcessMesh) -> Batch:
    """The rows of a step that this rank has: of two, the last group is the second's."""
    prompts, lengths = STEPS[index]
    batch = vision_batch(prompts, lengths)
    if ranks.mesh.dp == 1:
        return batch
    mine = batch.group_ids == len(prompts) - 1
    return batch.take(np.flatnonzero(mine if ranks.mesh.dp_rank(ranks.rank) else ~mine))


def engine_of(path: str, settings: TrainSettings, ranks: ProcessMesh, seed: int = 0) -> FSDPEngine:
    model = random_policy(path, settings.master_dtype, seed)
    return FSDPEngine(model, settings, CPU, ranks, reader=reader_of(model))


def learn(rank: int, path: str, mesh: Mesh, kinds: dict[str, TrainSettings]) -> dict[str, dict[str, Any]]:
    """What an engine of each kind learns."""
    ranks, result = mesh_here(mesh), {}
    for name, settings in kinds.items():
        engine = engine_of(path, settings, ranks)
        reference = engine_of(path, replace(settings, trainable=False), ranks, seed=3)
        metrics = [engine.update(part(index, ranks), PolicyGradient()) for index in range(len(STEPS))]
        metrics.append(engine.update(part(0, ranks), Distillation(), reference=reference))
        result[name] = {
            "losses": [step["update/loss"].value for step in metrics],
            "norms": [step["update/gradient_norm"].value for step in metrics],
            "log_probs": engine.log_probs(part(0, ranks)).values,
            "weights": snapshot(engine),
        }
    return result


KINDS = {
    "units": LEARNING,
    "one unit": replace(LEARNING, min_unit_bytes=TrainSettings().min_unit_bytes),
    "reduced": replace(LEARNING, held_bytes=0),
    "recomputed": replace(LEARNING, activation_checkpointing=True),
    "frozen": FROZEN,
    "frozen, reduced": replace(FROZEN, held_bytes=0),
}


@pytest.mark.parametrize("kind", some_slow(sorted(VISION_FAMILIES), "qwen2_5_vl"))
def test_ranks_with_and_without_pictures_train_like_one(tmp_path: Path, kind: str) -> None:
    path = write_vision_config(tmp_path / "model", kind)
    kinds = KINDS if kind == "qwen3_vl" else {"units": LEARNING}
    one = learn(0, path, Mesh(), {"units": LEARNING, "frozen": FROZEN})
    two = run_ranks(2, learn, tmp_path / "two", path, Mesh(dp=2), kinds)
    for name in kinds:
        expected = one["frozen" if name.startswith("frozen") else "units"]
        losses = np.sum([rank[name]["losses"] for rank in two], axis=0) / 2
        np.testing.assert_allclose(losses, expected["losses"], atol=1e-12, err_msg=name)
        for rank in two:
            np.testing.assert_allclose(rank[name]["norms"], expected["norms"], atol=1e-12, err_msg=name)
            assert_close(rank[name]["weights"], expected["weights"], 1e-12)
        scores = np.concatenate([rank[name]["log_probs"] for rank in two])
        np.testing.assert_allclose(scores, expected["log_probs"], atol=1e-6)


GOES_ROUND = ("qwen3_vl", Mesh(cp=2), {"num_key_value_heads": 1})
"""One key head cannot be shared by two ranks."""
PARALLEL = [
    ("qwen2_5_vl", Mesh(tp=2), {}),
    ("qwen2_5_vl", Mesh(cp=2), {}),
    GOES_ROUND,
    ("qwen3_vl", Mesh(tp=2), {}),
    ("qwen3_vl_moe", Mesh(dp=2, ep=2), {}),
]


@pytest.mark.parametrize(
    ("kind", "mesh", "more"),
    some_slow(PARALLEL, GOES_ROUND, ("qwen2_5_vl", Mesh(tp=2), {})),
    ids=lambda value: str(value).replace(" ", ""),
)
def test_ranks_that_share_a_copy_learn_from_pictures_what_one_does(
    tmp_path: Path, kind: str, mesh: Mesh, more: dict[str, Any]
) -> None:
    """Tensor, context and expert parallelism begin behind the embeddings, of which features are some."""
    path = write_vision_config(tmp_path / "model", kind, **more)
    kinds = {"units": LEARNING, "frozen": FROZEN}
    one = learn(0, path, Mesh(), kinds)
    two = run_ranks(2, learn, tmp_path / "two", path, mesh, kinds)
    for name, expected in one.items():
        losses = np.sum([rank[name]["losses"] for rank in two], axis=0) / 2 if mesh.dp > 1 else two[0][name]["losses"]
        np.testing.assert_allclose(losses, expected["losses"], atol=1e-12, err_msg=name)
        for rank in two:
            np.testing.assert_allclose(rank[name]["norms"], expected["norms"], atol=1e-12, err_msg=name)
            # AdamW divides a gradient by its size, and so the rounding of a small one: 1.5e-12 were seen
            assert_close(rank[name]["weights"], expected["weights"], 1e-11)


def test_micro_batches_do_not_change_what_is_learned(tmp_path: Path) -> None:
    path = write_vision_config(tmp_path, "qwen2_5_vl")
    kinds = {
        "whole": replace(LEARNING, tokens_per_micro_batch=1000),
        "tokens": replace(LEARNING, tokens_per_micro_batch=1),
        "patches": replace(LEARNING, tokens_per_micro_batch=1000, patches_per_micro_batch=1),
    }
    result = learn(0, path, Mesh(), kinds)
    for name in ("tokens", "patches"):
        np.testing.assert_allclose(result[name]["losses"], result["whole"]["losses"], atol=1e-12)
        assert_close(result[name]["weights"], result["whole"]["weights"], 1e-11)


def test_pictures_of_the_next_micro_batch_are_decoded_while_one_is_computed(tmp_path: Path) -> None:
    model = random_policy(write_vision_config(tmp_path, "qwen3_vl"), torch.float64, 0)
    processor = DrawnPictures()
    settings = replace(LEARNING, tokens_per_micro_batch=1, trainable=False)
    engine = FSDPEngine(model, settings, CPU, reader=reader_of(model, processor))
    # three groups of two rows, a row to a micro-batch: the small picture, the large one, text alone
    engine.log_probs(part(0, mesh_here(Mesh())))
    assert processor.ahead == [[SMALL], [SMALL, LARGE], [LARGE], [LARGE], [], []]
    assert processor.opened == [SMALL, SMALL, LARGE, LARGE]


def test_pictures_are_decoded_ahead_once_for_a_group_and_as_many_as_stay(tmp_path: Path) -> None:
    model = random_policy(write_vision_config(tmp_path, "qwen3_vl"), torch.float64, 0)
    processor, rows = DrawnPictures(), part(0, mesh_here(Mesh()))
    reader = reader_of(model, processor)
    FSDPEngine(model, replace(LEARNING, trainable=False), CPU, reader=reader).read_ahead(rows)
    reader.read_ahead(rows, np.arange(len(rows)), most_patches=4)
    assert processor.ahead == [[SMALL, LARGE], [SMALL]]


def test_a_frozen_tower_has_no_gradient_and_no_optimizer_and_is_sent_once(tmp_path: Path) -> None:
    path = write_vision_config(tmp_path, "qwen3_vl")
    engine = engine_of(path, FROZEN, mesh_here(Mesh()))
    before = snapshot(engine)
    assert engine.optimizer is not None and not any(map(is_of_tower, engine.optimizer.parameters))
    assert not any(is_of_tower(name) for name in engine.optimizer.state())
    engine.update(part(0, mesh_here(Mesh())), PolicyGradient())
    after = snapshot(engine)
    for name, tensor in before.items():
        assert torch.equal(tensor, after[name]) == is_of_tower(name), name
    changed = {name for name, _ in engine.weights(trained_only=True)}
    assert changed == {name for name in before if not is_of_tower(name)}
    sent = {name for bucket in engine.weight_buckets([0], trained_only=True) for name, _ in bucket}
    assert sent == changed
    learning = engine_of(path, LEARNING, mesh_here(Mesh()))
    assert {name for name, _ in learning.weights(trained_only=True)} == set(before)


def test_a_tower_learns_at_a_rate_of_its_own(tmp_path: Path) -> None:
    """AdamW's first step is one learning rate per weight, whatever the gradient."""
    path = write_vision_config(tmp_path, "qwen3_vl")
    settings = replace(LEARNING, learning_rate=1e-3, vision_learning_rate=1e-2)
    engine = engine_of(path, settings, mesh_here(Mesh()))
    before = snapshot(engine)
    engine.update(part(0, mesh_here(Mesh())), PolicyGradient())
    after = snapshot(engine)
    steps = {name: float((after[name] - tensor).abs().max()) for name, tensor in before.items()}
    of_tower = [step for name, step in steps.items() if is_of_tower(name)]
    others = [step for name, step in steps.items() if not is_of_tower(name)]
    assert max(of_tower) == pytest.approx(1e-2, rel=1e-3) and max(others) == pytest.approx(1e-3, rel=1e-3)


def train_adapter(rank: int, path: str, mesh: Mesh) -> dict[str, Any]:
    ranks = mesh_here(mesh)
    model = empty_policy(path, torch.float64)
    reader = reader_of(model)
    adapter = Adapter(path, rank=2, alpha=4.0, targets=())
    engine = FSDPEngine(model, FROZEN, CPU, ranks, WeightFiles.find(path), adapter, reader=reader)
    before = snapshot(engine)
    for index in range(len(STEPS)):
        engine.update(part(index, ranks), PolicyGradient())
    engine.update(part(0, ranks), Distillation(), reference=BaseModel(engine))
    names = [name for name, item in engine.model.named_parameters() if item.requires_grad]
    return {"before": before, "weights": snapshot(engine), "trained": names}


def test_an_adapter_is_beside_the_decoder(tmp_path: Path) -> None:
    path = write_vision_model(tmp_path / "model", "qwen2_5_vl")
    one = train_adapter(0, path, Mesh())
    two = run_ranks(2, train_adapter, tmp_path / "two", path, Mesh(dp=2))
    assert one["trained"] and not any(map(is_of_tower, one["trained"]))
    for name, tensor in one["before"].items():
        changes = "language_model.layers" in name and name.endswith("proj.weight")
        assert torch.equal(tensor, one["weights"][name]) != changes, name
    for rank in two:
        assert_close(rank["weights"], one["weights"], 1e-12)


def test_a_checkpoint_goes_on_and_is_exported_as_files_that_transformers_reads(tmp_path: Path) -> None:
    for kind, settings in (("qwen2_5_vl", FROZEN), ("qwen3_vl_moe", LEARNING)):
        path, ranks = write_vision_config(tmp_path / kind, kind), mesh_here(Mesh())
        engine = engine_of(path, settings, ranks)
        engine.update(part(0, ranks), PolicyGradient())
        save(engine, tmp_path / kind / "checkpoint")
        other = engine_of(path, settings, ranks, seed=9)
        other.load(tmp_path / kind / "checkpoint")
        assert_close(snapshot(other), snapshot(engine), 0.0)
        engine.update(part(2, ranks), PolicyGradient())
        other.update(part(2, ranks), PolicyGradient())
        assert_close(snapshot(other), snapshot(engine), 0.0)
        export_of(engine, tmp_path / kind / "exported")
        stock = AutoModelForImageTextToText.from_pretrained(tmp_path / kind / "exported", dtype=torch.float64)
        result = dict(engine.model.named_parameters())
        assert_close(dict(stock.named_parameters()), result, 0.0)
        again = load_policy(str(tmp_path / kind / "exported"), torch.float64, CPU)
        assert_close(dict(again.named_parameters()), result, 0.0)
