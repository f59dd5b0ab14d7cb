"""Models with a value head in pipeline stages: what is written of them, and what they read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification

from rljob_api.pipeline.meshes import Mesh
from rljob_worker.engines.fsdp import FSDPEngine
from rljob_worker.engines.megatron.library import megatron_layers
from rljob_worker.engines.models import WeightFiles, empty_classifier, empty_value_model, random_value_model
from rljob_worker.engines.tests.builders import CONFIGS, ValueRegression, export_of, mesh_here, some_slow, write_config
from rljob_worker.engines.tests.ranks import run_ranks
from rljob_worker.engines.tests.uneven import CPU, EXACT, assert_close, share, snapshot

SHARED = replace(EXACT, tokens_per_micro_batch=7)
CONFIG = {"num_hidden_layers": 3, "tie_word_embeddings": True}  # of which a critic has the embedding alone


def learn(rank: int, path: str, mesh: Mesh, directory: Path) -> dict[str, Any]:
    """An update of a critic, which is then written."""
    ranks = mesh_here(mesh)
    critic = FSDPEngine(random_value_model(path, torch.float64, 0), SHARED, CPU, ranks, layers=megatron_layers(CPU))
    critic.update(share(0, ranks), ValueRegression())
    export_of(critic, directory)
    return {"values": critic.values(share(0, ranks)).values, "weights": snapshot(critic)}


def read(rank: int, path: str, mesh: Mesh, kind: Literal["critic", "classifier"]) -> dict[str, Any]:
    ranks = mesh_here(mesh)
    build = empty_value_model if kind == "critic" else empty_classifier
    model = build(path, torch.float64)
    engine = FSDPEngine(model, SHARED, CPU, ranks, WeightFiles.find(path), layers=megatron_layers(CPU))
    return {"values": engine.values(share(0, ranks)).values, "weights": snapshot(engine)}


@pytest.mark.parametrize("mesh", some_slow([Mesh(pp=3), Mesh(pp=2, tp=2)], Mesh(pp=2, tp=2)), ids=["pp 3", "pp 2 tp 2"])
def test_a_critic_is_written_whole_and_read_by_other_stages(tmp_path: Path, mesh: Mesh) -> None:
    path, exported = write_config(tmp_path / "model", "qwen3", **CONFIG), tmp_path / "exported"
    (one,) = run_ranks(1, learn, tmp_path / "alone", path, Mesh(), tmp_path / "one")
    wrote = run_ranks(mesh.size, learn, tmp_path / "ranks", path, mesh, exported)
    for rank in wrote:
        assert_close(rank["weights"], one["weights"], 1e-12)
    files = [load_file(directory / "model.safetensors").keys() for directory in (exported, tmp_path / "one")]
    assert files[0] == files[1]
    for run_rank in run_ranks(2, read, tmp_path / "read", str(exported), Mesh(pp=2), "critic"):
        assert_close(run_rank["weights"], wrote[0]["weights"], 0.0)
        np.testing.assert_allclose(run_rank["values"], wrote[0]["values"], atol=1e-6)


def test_a_model_of_rewards_is_read_by_stages(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = CONFIGS["qwen3"](**CONFIG, num_labels=1)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path / "model")
    (one,) = run_ranks(1, read, tmp_path / "alone", str(tmp_path / "model"), Mesh(), "classifier")
    assert np.ptp(one["values"]) > 1e-3
    for rank in run_ranks(3, read, tmp_path / "ranks", str(tmp_path / "model"), Mesh(pp=3), "classifier"):
        np.testing.assert_allclose(rank["values"], one["values"], atol=1e-6)
