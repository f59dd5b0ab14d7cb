"""Which models are refused at load, by name, and that those in the table generate as they train."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertConfig, GraniteConfig

from rljob_worker.batch import Batch, Column
from rljob_worker.engines.fsdp import FSDPEngine, TrainSettings
from rljob_worker.engines.models import load_policy, model_config
from rljob_worker.engines.models.families import FAMILIES
from rljob_worker.engines.rollout.generate import generate
from rljob_worker.engines.rollout.requests import Sampling
from rljob_worker.engines.rollout.transformers import TransformersRollout
from rljob_worker.engines.tests.builders import CONFIGS, END, VOCABULARY, write_config, write_model
from rljob_worker.errors import InvalidJob

CPU = torch.device("cpu")


def test_every_family_has_a_tiny_model_for_the_tests() -> None:
    assert set(CONFIGS) == set(FAMILIES)


@pytest.mark.parametrize("kind", sorted(FAMILIES))
def test_a_family_is_loaded_generates_and_is_scored_alike(tmp_path: Path, kind: str) -> None:
    path = write_model(tmp_path, kind)
    sampling = Sampling(temperature=0.9, seed=5)
    prompts = [np.random.default_rng(i).integers(2, VOCABULARY, length) for i, length in enumerate([7, 1, 12])]
    row_ids = np.arange(12)
    rollout = TransformersRollout(load_policy(path, torch.float32, CPU), CPU, (END,))
    responses = generate(rollout, prompts, sampling, row_ids, 4, 24)
    columns = {
        "prompt_ids": Column.ragged([prompts[row // 4] for row in row_ids]),
        "response_ids": responses.response_ids,
    }
    trainer = FSDPEngine(load_policy(path, torch.float32, CPU), TrainSettings(temperature=0.9, trainable=False), CPU)
    log_probs = trainer.log_probs(Batch.build(row_ids, row_ids // 4, columns))
    np.testing.assert_allclose(log_probs.values, responses.log_probs.values, atol=1e-5)


def test_another_family_is_refused_with_those_that_are_known(tmp_path: Path) -> None:
    for config, name in ((GraniteConfig(), "granite"), (BertConfig(is_decoder=True), "bert")):
        config.save_pretrained(tmp_path / name)
        with pytest.raises(InvalidJob, match=f"do not know models of type '{name}'; use one of .*Gemma 2, .*Qwen3"):
            model_config(str(tmp_path / name))


ROTARY = {"factor": 2.0, "rope_theta": 1e4, "original_max_position_embeddings": 128}
DYNAMIC = ROTARY | {"rope_type": "dynamic"}
LONGROPE = ROTARY | {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
PACKED = "by the longest row .* packed with it; use a model of default, linear, llama3, yarn"


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        ("llama", {"rope_parameters": DYNAMIC}, f"rotary positions of type dynamic turn {PACKED}"),
        ("phi3", {"rope_parameters": LONGROPE}, f"rotary positions of type longrope turn {PACKED}"),
        ("qwen3", {"layer_types": ["full_attention", "chunked_attention"]}, "chunked_attention are not built yet"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "attends to later tokens"),
        ("llama", {"quantization_config": {"quant_method": "fp8"}}, "quantized by fp8"),
    ],
)
def test_what_a_known_family_cannot_have_is_refused_at_load(
    tmp_path: Path, kind: str, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidJob, match=message):
        model_config(write_config(tmp_path, kind, **fields))


def test_policies_of_flows_and_words_that_are_not_there_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"type": "pi0"}')
    with pytest.raises(InvalidJob, match="π0 makes actions by a flow"):
        model_config(str(tmp_path))
    words = {"first_word": VOCABULARY - 3, "bins": 4}
    with pytest.raises(InvalidJob, match="bins 4 from first_word 45 on, and the model has words from 0 to 47"):
        model_config(write_config(tmp_path / "words", "llama", action_tokens=words))


def test_a_model_with_action_tokens_draws_them_alone_and_scores_them_alike(tmp_path: Path) -> None:
    path = write_model(tmp_path, "llama", action_tokens={"first_word": 9, "bins": 4, "chunk": 2, "dimensions": 3})
    prompts, rows = [np.array([3, 4, 5]), np.array([7])], np.arange(4)
    rollout = TransformersRollout(load_policy(path, torch.float32, CPU), CPU, ())
    responses = generate(rollout, prompts, Sampling(temperature=1.6, seed=5), rows, 2, 6)
    assert set(responses.response_ids.values.tolist()) <= {9, 10, 11, 12}
    columns = {"prompt_ids": Column.ragged([prompts[row // 2] for row in rows]), "response_ids": responses.response_ids}
    trainer = FSDPEngine(load_policy(path, torch.float32, CPU), TrainSettings(temperature=1.6, trainable=False), CPU)
    log_probs = trainer.log_probs(Batch.build(rows, rows // 2, columns))
    np.testing.assert_allclose(log_probs.values, responses.log_probs.values, atol=1e-5)
