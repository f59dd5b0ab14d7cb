"""Pipeline stages, as real processes over gloo: the numbers of one rank that has all layers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from rljob_api.pipeline.meshes import Mesh
from rljob_worker.engines.fsdp import FSDPEngine, TrainSettings
from rljob_worker.engines.fsdp.checkpoint.place_files import PlaceReader
from rljob_worker.engines.megatron.library import megatron_layers
from rljob_worker.engines.megatron.pipeline_stage import keep_pipeline_stage
from rljob_worker.engines.models import WeightFiles, empty_policy, give_memory, load_policy, random_policy
from rljob_worker.engines.tests.builders import (
    PolicyGradient,
    export_of,
    mesh_here,
    save,
    some_slow,
    write_config,
    write_model,
)
from rljob_worker.engines.tests.ranks import run_ranks
from rljob_worker.engines.tests.uneven import (
    CPU,
    EXACT,
    assert_close,
    assert_trained_alike,
    learn,
    seen,
    share,
    snapshot,
)
from rljob_worker.errors import InvalidJob

SHARED = replace(EXACT, tokens_per_micro_batch=7)
TIED = {"tie_word_embeddings": True}


def train(rank: int, path: str, mesh: Mesh, settings: TrainSettings) -> dict[str, Any]:
    ranks = mesh_here(mesh)
    return seen(learn(path, settings, ranks, megatron_layers(CPU)), ranks)


def test_stages_that_cannot_be_are_refused(tmp_path: Path) -> None:
    policy = random_policy(write_config(tmp_path), torch.float32, 0)
    with pytest.raises(InvalidJob, match="3 stages of 2 layers would leave some without any"):
        keep_pipeline_stage(policy, policy.model.layers, 0, 3)


def parameters_by_pipeline_stage(path: str, num_stages: int) -> list[dict[str, torch.Tensor]]:
    """The parameters of each pipeline stage, read from the files."""
    result = []
    for stage in range(num_stages):
        policy = empty_policy(path, torch.float32)
        keep_pipeline_stage(policy, policy.model.layers, stage, num_stages)
        give_memory(policy, CPU)
        WeightFiles.find(path).fill(policy, is_pipeline_stage=True)
        result.append(dict(policy.named_parameters()))
    return result


def test_a_stage_has_its_layers_under_their_names_and_reads_them_alone(tmp_path: Path) -> None:
    path = write_model(tmp_path, "qwen3", num_hidden_layers=3)
    first, last = map(list, parameters_by_pipeline_stage(path, 2))
    assert first + last == [name for name, _ in random_policy(path, torch.float32, 0).named_parameters()]
    assert {name.split(".")[2] for name in last if "layers" in name} == {"2"}
    assert first[0] == "model.embed_tokens.weight" and last[-2:] == ["model.norm.weight", "lm_head.weight"]


def test_an_embedding_that_is_the_last_layer_is_on_both_ends_under_one_name(tmp_path: Path) -> None:
    path = write_model(tmp_path, "qwen3", num_hidden_layers=3, **TIED)
    first, between, last = parameters_by_pipeline_stage(path, 3)
    name = "model.embed_tokens.weight"
    assert torch.equal(first[name], last[name]) and name not in between
    assert "lm_head.weight" not in first.keys() | between.keys() | last.keys()


@pytest.mark.parametrize(
    ("mesh", "config"),
    some_slow(
        [
            (Mesh(pp=3), {}),
            (Mesh(pp=2, tp=2), {}),
            (Mesh(cp=2, pp=2), {}),
            (Mesh(pp=2), TIED),
            (Mesh(pp=3), TIED),
            (Mesh(dp=2, pp=2), TIED),
            (Mesh(dp=2, rp=2, pp=2), TIED),
            (Mesh(pp=2, tp=2), TIED),
        ],
        (Mesh(pp=2, tp=2), {}),
        (Mesh(pp=3), TIED),
    ),
    ids=[
        "pp 3",
        "pp 2 tp 2",
        "cp 2 pp 2",
        "pp 2 tied",
        "pp 3 tied",
        "dp 2 pp 2 tied",
        "rp 2 pp 2 tied",
        "pp 2 tp 2 tied",
    ],
)
def test_stages_train_like_one_rank(tmp_path: Path, mesh: Mesh, config: dict[str, Any]) -> None:
    path, here = write_config(tmp_path, "qwen3", num_hidden_layers=3, **config), mesh_here(Mesh())
    one = seen(learn(path, EXACT, here), here)
    settings = replace(SHARED, activation_checkpointing=mesh.tp == 2)
    ranks = run_ranks(mesh.size, train, tmp_path / "ranks", path, mesh, settings)
    assert_trained_alike(ranks, mesh, one)


def go_on(rank: int, path: str, mesh: Mesh, directory: Path, *, begins: bool) -> dict[str, Any]:
    """One update that ends in a checkpoint and files; or one that begins with the checkpoint."""
    ranks = mesh_here(mesh)
    model = random_policy(path, torch.float64, 0 if begins else 99)
    trained = FSDPEngine(model, SHARED, CPU, ranks, layers=megatron_layers(CPU))
    if not begins:
        trained.load(directory / "checkpoint")
    result = trained.update(share(0 if begins else 1, ranks), PolicyGradient())
    if begins:
        save(trained, directory / "checkpoint")
        export_of(trained, directory / "exported", checkpoint=directory / "checkpoint")
        export_of(trained, directory / "files", checkpoint=directory / "checkpoint", file_bytes=20_000)
    own = [name for bucket in trained.weight_buckets([mesh.size - 1, 0][: mesh.size]) for name, _ in bucket]
    return {"weights": snapshot(trained), "metrics": [result if ranks.is_leader else {}], "own": own}


def test_a_tied_model_goes_on_in_other_layouts_and_is_one_tensor_in_files(tmp_path: Path) -> None:
    path = write_config(tmp_path / "model", "qwen3", num_hidden_layers=3, **TIED)
    wrote = run_ranks(3, begin, tmp_path / "begin", path, Mesh(pp=3), tmp_path)
    straight = go_on(0, path, Mesh(), tmp_path, begins=False)
    for name, mesh in (("two stages", Mesh(pp=2)), ("split", Mesh(tp=2))):
        for rank in run_ranks(2, end, tmp_path / name, path, mesh, tmp_path):
            assert_close(rank["weights"], straight["weights"], 1e-12)
    for place in ("exported", "files"):
        stock = AutoModelForCausalLM.from_pretrained(tmp_path / place, dtype=torch.float64)
        mine = load_policy(str(tmp_path / place), torch.float64, CPU)
        assert_close(dict(stock.named_parameters()), wrote[0]["weights"], 0.0)
        assert_close(dict(mine.named_parameters()), wrote[0]["weights"], 0.0)
    for result in PlaceReader(tmp_path / "checkpoint").read_metadata().state_dict_metadata.values():
        assert sum(chunk.sizes.numel() for chunk in result.chunks) == result.size.numel()
    # each tensor once, at the first rank or at the last
    assert sorted(name for rank in wrote for name in rank["own"]) == sorted(wrote[0]["weights"])


def begin(rank: int, path: str, mesh: Mesh, directory: Path) -> dict[str, Any]:
    return go_on(rank, path, mesh, directory, begins=True)


def end(rank: int, path: str, mesh: Mesh, directory: Path) -> dict[str, Any]:
    return go_on(rank, path, mesh, directory, begins=False)
