"""OpenVLA and OpenVLA-OFT: towers as transformers has them, names as published, engines that compute the same."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Dinov2WithRegistersConfig, Dinov2WithRegistersModel, SiglipVisionConfig, SiglipVisionModel

from rljob_api.memory.fused_towers import TowerShape
from rljob_api.memory.model_shape import parse_shape
from rljob_api.pipeline.meshes import Mesh
from rljob_worker.engines.fsdp import FSDPEngine, TrainSettings
from rljob_worker.engines.models import load_policy, random_policy, random_value_model
from rljob_worker.engines.models.actions import OpenVLAConfig
from rljob_worker.engines.models.actions.feature_tower import FeatureTower
from rljob_worker.engines.rollout.generate import Responses, answer
from rljob_worker.engines.rollout.transformers import OneForwardRollout, TransformersRollout
from rljob_worker.engines.tests.acting import (
    CPU,
    NUM_TOKENS,
    as_batch,
    asked,
    fused_reader,
    seen_by,
    write_openvla_config,
)
from rljob_worker.engines.tests.builders import PolicyGradient, ValueRegression, export_of, mesh_here
from rljob_worker.engines.tests.ranks import run_ranks
from rljob_worker.engines.tests.uneven import EXACT, assert_close, snapshot
from rljob_worker.errors import BadData

ROWS = np.arange(6)
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # name: (config, what is shown)
    "one picture": ({}, {}),
    "two pictures and a state": ({"state_size": 3, "suffix_tokens": [2]}, {"pictures": 2, "state": True}),
    "prompts see all": ({"bidirectional": "All", "suffix_tokens": [2]}, {}),
}


def decided(path: str, rows: np.ndarray, shown: dict[str, Any], dtype: torch.dtype = torch.float32) -> Responses:
    model = random_policy(path, dtype, 0)
    engine = OneForwardRollout(model, CPU, reader=fused_reader(model))
    return answer(engine, asked(rows, **shown))


@pytest.mark.parametrize("kind", KINDS)
def test_decisions_are_scored_as_they_are_drawn_packed_and_alone(tmp_path: Path, kind: str) -> None:
    config, view = KINDS[kind]
    path, shown = write_openvla_config(tmp_path, **config), seen_by(ROWS, **view)
    packed = decided(path, ROWS, shown)
    assert packed.response_ids.lengths.tolist() == [NUM_TOKENS] * 6
    assert set(packed.response_ids.values.tolist()) <= set(range(30, 36))
    for row in (0, 5):
        at = ROWS[row : row + 1]
        alone = decided(path, at, seen_by(at, **view))
        np.testing.assert_array_equal(alone.response_ids.values, packed.response_ids.row(row))
        np.testing.assert_allclose(alone.log_probs.values, packed.log_probs.row(row), atol=1e-5)
    model = random_policy(path, torch.float32, 0)
    settings = TrainSettings(temperature=1.6, trainable=False, tokens_per_micro_batch=40)
    trainer = FSDPEngine(model, settings, CPU, reader=fused_reader(model))
    scores = trainer.log_probs(as_batch(shown, packed, ROWS))
    np.testing.assert_allclose(scores.values, packed.log_probs.values, atol=1e-5)


def test_an_action_depends_on_picture_state_and_place_but_on_no_other_action(tmp_path: Path) -> None:
    path = write_openvla_config(tmp_path, state_size=3)
    model = random_policy(path, torch.float64, 0)
    trainer = FSDPEngine(model, replace(EXACT, trainable=False), CPU, reader=fused_reader(model))
    shown = seen_by(ROWS, state=True)
    batch = as_batch(shown, decided(path, ROWS, shown), ROWS)
    scores = trainer.log_probs(batch).values.reshape(6, -1)
    others = batch["response_ids"].values.reshape(6, -1).copy()
    others[:, 0] = 30 + (others[:, 0] - 29) % 6
    changed = trainer.log_probs(batch.with_columns({"response_ids": _like(batch["response_ids"], others)}))
    changed = changed.values.reshape(6, -1)
    np.testing.assert_array_equal(changed[:, 1:], scores[:, 1:])
    assert (changed[:, 0] != scores[:, 0]).all()
    for name in ("images", "state"):
        moved = batch.with_columns({name: batch[name].take(ROWS[::-1])})
        assert (np.abs(trainer.log_probs(moved).values.reshape(6, -1) - scores) > 1e-9).all(), name


def _like(column: Any, values: np.ndarray) -> Any:
    return replace(column, values=values.ravel())


def test_openvla_samples_its_words_one_after_another(tmp_path: Path) -> None:
    path, shown = write_openvla_config(tmp_path, "openvla"), seen_by(ROWS)
    model = random_policy(path, torch.float32, 0)
    engine = TransformersRollout(model, CPU, (), reader=fused_reader(model))
    responses = answer(engine, replace(asked(ROWS, **shown), max_tokens=np.full(6, 2)))
    assert set(responses.response_ids.values.tolist()) <= set(range(30, 36))
    trainer = FSDPEngine(
        random_policy(path, torch.float32, 0),
        TrainSettings(temperature=1.6, trainable=False),
        CPU,
        reader=fused_reader(model),
    )
    scores = trainer.log_probs(as_batch(shown, responses, ROWS))
    np.testing.assert_allclose(scores.values, responses.log_probs.values, atol=1e-5)


def learn(rank: int, path: str, mesh: Mesh) -> dict[str, Any]:
    """What a policy, its towers included, and a critic learn in two updates."""
    ranks = mesh_here(mesh)
    shown = seen_by(ROWS, state=True)
    batch = as_batch(shown, decided(path, ROWS, shown, torch.float64), ROWS)
    first = ranks.mesh.dp_rank(ranks.rank) == 0
    parts = [batch] * 2
    if ranks.mesh.dp > 1:
        parts = [batch.take(ROWS[:4] if first else ROWS[4:]), batch if first else batch.take(ROWS[:0])]
    result: dict[str, Any] = {}
    settings = replace(EXACT, tokens_per_micro_batch=30, temperature=1.6)
    models = {"policy": random_policy(path, torch.float64, 0), "critic": random_value_model(path, torch.float64, 0)}
    for name, objective in (("policy", PolicyGradient()), ("critic", ValueRegression())):
        model, rate = models[name], 3e-3 if name == "policy" else None
        reader = fused_reader(getattr(model, "backbone", model))
        engine = FSDPEngine(model, replace(settings, vision_learning_rate=rate), CPU, ranks, reader=reader)
        norms = [engine.update(part, objective)["update/gradient_norm"].value for part in parts]
        result[name] = {"norms": norms, "weights": snapshot(engine)}
    return result


@pytest.mark.slow
def test_two_ranks_learn_what_one_does(tmp_path: Path) -> None:
    path = write_openvla_config(tmp_path / "model", state_size=3)
    one = learn(0, path, Mesh())
    for rank in run_ranks(2, learn, tmp_path / "two", path, Mesh(dp=2)):
        for name in ("policy", "critic"):
            np.testing.assert_allclose(rank[name]["norms"], one[name]["norms"], atol=1e-12)
            assert_close(rank[name]["weights"], one[name]["weights"], 1e-12)


@pytest.mark.parametrize("more", [{}, {"state_size": 3}])
def test_a_plan_counts_the_parameters_that_there_are(tmp_path: Path, more: dict[str, Any]) -> None:
    path = write_openvla_config(tmp_path, **more)
    shape = parse_shape(json.loads((tmp_path / "config.json").read_text()))
    assert shape is not None and shape.vision is not None
    model = random_policy(path, torch.float32, 0)
    decoder = sum(item.numel() for item in model.language_model.parameters())
    assert shape.parameters == decoder
    assert shape.vision.parameters == sum(item.numel() for item in model.parameters()) - decoder


def test_towers_compute_what_those_of_transformers_do() -> None:
    torch.manual_seed(0)
    shared = {"hidden_size": 16, "num_attention_heads": 2, "patch_size": 4, "image_size": 8}
    dino = Dinov2WithRegistersModel(
        Dinov2WithRegistersConfig(
            **shared, num_hidden_layers=3, mlp_ratio=2, num_register_tokens=2, initializer_range=0.2
        )
    ).eval()
    siglip = SiglipVisionModel(
        SiglipVisionConfig(**shared, num_hidden_layers=3, intermediate_size=32, hidden_act="gelu")
    ).eval()
    for parameter in siglip.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    pixels = torch.randn(2, 3, 8, 8)
    tower = FeatureTower(TowerShape(16, 3, 2, 32, patch=4, registers=2, layer_scale=True), 8)
    tower.load_state_dict(_of_dino(dino.state_dict()))
    expected = dino(pixels, output_hidden_states=True).hidden_states[2][:, 3:]
    torch.testing.assert_close(tower(pixels), expected, atol=1e-5, rtol=1e-5)
    tower = FeatureTower(TowerShape(16, 3, 2, 32, patch=4), 8)
    tower.load_state_dict(_of_siglip(siglip.state_dict()))
    expected = siglip(pixels, output_hidden_states=True).hidden_states[2]
    torch.testing.assert_close(tower(pixels), expected, atol=1e-5, rtol=1e-5)


def _blocks(
    state: dict[str, torch.Tensor], names: dict[str, str], prefix: str, qkv: list[str]
) -> dict[str, torch.Tensor]:
    """The first two layers, by timm's names."""
    result = {}
    for layer in range(2):
        here = f"{prefix}{layer}."
        for kind in ("weight", "bias"):
            parts = [state[f"{here}{name}.{kind}"] for name in qkv]
            result[f"blocks.{layer}.attn.qkv.{kind}"] = torch.cat(parts)
            for ours, theirs in names.items():
                result[f"blocks.{layer}.{ours}.{kind}"] = state[f"{here}{theirs}.{kind}"]
    return result


def _of_dino(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    prefix = next(name for name in state if ".layer.0." in f".{name}").partition("layer.0.")[0] + "layer."
    names = {
        "norm1": "norm1", "norm2": "norm2", "attn.proj": "attention.o_proj", "mlp.fc1": "mlp.fc1",
        "mlp.fc2": "mlp.fc2",
    }  # fmt: skip
    query_key_value = [f"attention.{name}_proj" for name in "qkv"]
    result = _blocks(state, names, prefix, query_key_value)
    for layer in range(2):
        for scale in ("1", "2"):
            result[f"blocks.{layer}.ls{scale}.scale_factor"] = state[f"{prefix}{layer}.layer_scale{scale}.lambda1"]
    positions = state["embeddings.position_embeddings"]
    return result | {
        # the class token has a position there, which timm's files have added to it
        "cls_token": state["embeddings.cls_token"] + positions[:, :1],
        "reg_token": state["embeddings.register_tokens"],
        "pos_embed": positions[:, 1:],
        "patch_embed.proj.weight": state["embeddings.patch_embeddings.projection.weight"],
        "patch_embed.proj.bias": state["embeddings.patch_embeddings.projection.bias"],
    }


def _of_siglip(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    state = {name.removeprefix("vision_model."): item for name, item in state.items()}
    names = {
        "norm1": "layer_norm1", "norm2": "layer_norm2", "attn.proj": "self_attn.out_proj", "mlp.fc1": "mlp.fc1",
        "mlp.fc2": "mlp.fc2",
    }  # fmt: skip
    result = _blocks(state, names, "encoder.layers.", [f"self_attn.{name}_proj" for name in "qkv"])
    return result | {
        "pos_embed": state["embeddings.position_embedding.weight"][None],
        "patch_embed.proj.weight": state["embeddings.patch_embedding.weight"],
        "patch_embed.proj.bias": state["embeddings.patch_embedding.bias"],
    }


PUBLISHED = {
    "language_model.lm_head.weight",
    "language_model.model.embed_tokens.weight",
    "language_model.model.norm.weight",
    "language_model.model.layers.0.input_layernorm.weight",
    "language_model.model.layers.0.self_attn.q_proj.weight",
    "language_model.model.layers.0.mlp.down_proj.weight",
    "projector.fc1.weight",
    "projector.fc2.bias",
    "projector.fc3.weight",
    "vision_backbone.featurizer.cls_token",
    "vision_backbone.featurizer.reg_token",
    "vision_backbone.featurizer.pos_embed",
    "vision_backbone.featurizer.patch_embed.proj.weight",
    "vision_backbone.featurizer.blocks.0.attn.qkv.bias",
    "vision_backbone.featurizer.blocks.0.attn.proj.weight",
    "vision_backbone.featurizer.blocks.0.ls1.scale_factor",
    "vision_backbone.featurizer.blocks.0.ls2.scale_factor",
    "vision_backbone.featurizer.blocks.0.norm1.weight",
    "vision_backbone.featurizer.blocks.0.mlp.fc1.weight",
    "vision_backbone.fused_featurizer.pos_embed",
    "vision_backbone.fused_featurizer.patch_embed.proj.bias",
    "vision_backbone.fused_featurizer.blocks.1.mlp.fc2.bias",
    "vision_backbone.fused_featurizer.blocks.1.attn.qkv.weight",
}
"""Names in the files of openvla/openvla-7b, as its modeling_prismatic.py makes them of timm's."""
UNUSED = (
    "vision_backbone.featurizer.blocks.2.norm1.weight",
    "vision_backbone.fused_featurizer.blocks.2.mlp.fc1.bias",
    "vision_backbone.featurizer.norm.weight",
    "vision_backbone.fused_featurizer.attn_pool.latent",
    "vision_backbone.fused_featurizer.attn_pool.q.weight",
)


def test_files_have_the_published_names_and_may_have_what_is_not_computed(tmp_path: Path) -> None:
    path = write_openvla_config(tmp_path, "openvla")
    model = random_policy(path, torch.float32, 0)
    names = {name for name, _ in model.named_parameters()}
    assert names >= PUBLISHED
    tensors = {name: item.detach().clone() for name, item in model.named_parameters()}
    save_file(tensors | {name: torch.zeros(1) for name in UNUSED}, tmp_path / "model.safetensors")
    loaded = load_policy(path, torch.float32, CPU)
    assert all(torch.equal(loaded.get_parameter(name), item) for name, item in tensors.items())
    save_file(tensors | {"vision_backbone.other.weight": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(BadData, match=r"have vision_backbone.other.weight"):
        load_policy(path, torch.float32, CPU)


def test_the_published_config_has_its_towers_and_words() -> None:
    config = OpenVLAConfig(text_config={"vocab_size": 32064})
    assert [(shape.hidden, shape.depth) for shape in config.towers] == [(1024, 24), (1152, 27)]
    words = config.action_tokens
    assert (words["first_word"], words["bins"], words["dimensions"]) == (31744, 256, 7)
    assert (config.num_patches, config.image_token_id) == (256, 32000)


def test_an_export_has_the_names_of_the_files(tmp_path: Path) -> None:
    path = write_openvla_config(tmp_path / "model")
    model = random_policy(path, torch.float32, 0)
    engine = FSDPEngine(model, replace(EXACT, precision="Float32"), CPU, reader=fused_reader(model))
    export_of(engine, tmp_path / "export")
    tensors = load_file(tmp_path / "export" / "model.safetensors")
    assert set(tensors) == {name for name, _ in model.named_parameters()}
    loaded = load_policy(str(tmp_path / "export"), torch.float32, CPU)
    assert loaded.config.one_forward == model.config.one_forward
