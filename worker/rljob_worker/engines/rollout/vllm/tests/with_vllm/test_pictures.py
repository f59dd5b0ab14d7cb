"""Prompts with pictures in vLLM: its log-probs are those of the trainer, before and after other weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import (
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
    Qwen3VLProcessor,
    Qwen3VLVideoProcessor,
)

from rljob_api.catalogue.columns import IMAGES
from rljob_worker.batch import Batch, Column
from rljob_worker.engines.fsdp import FSDPEngine, TrainSettings
from rljob_worker.engines.models import checkpoint_tensors, load_policy, random_policy
from rljob_worker.engines.models.policy_by_layers import PolicyByLayers
from rljob_worker.engines.models.vision import is_of_tower
from rljob_worker.engines.rollout.generate import generate
from rljob_worker.engines.rollout.protocol import RolloutEngine
from rljob_worker.engines.rollout.requests import Sampling
from rljob_worker.engines.rollout.vllm.library import load_start
from rljob_worker.engines.rollout.vllm.settings import VLLMSettings
from rljob_worker.engines.tests.ranks import run_fresh_ranks
from rljob_worker.engines.tests.seeing import (
    END,
    IMAGE,
    PATCH,
    START,
    STOP,
    VIDEO,
    VISION_CONFIGS,
    VOCABULARY,
    Prompt,
    animated,
    encoded,
    reader_of,
    showing,
    text,
)
from rljob_worker.vision.pictures import PictureList

CPU = torch.device("cpu")
SPECIAL = {IMAGE: "<|image_pad|>", VIDEO: "<|video_pad|>", START: "<|vision_start|>", STOP: "<|vision_end|>"}
PROMPTS: list[Prompt] = [
    [text(3), encoded(2, 4), text(4, 1)],
    [text(5, 2)],
    [encoded(8, 6, 1), text(2), encoded(2, 4)],
    # two pictures of one size under one question
    [text(3), encoded(4, 4, 0), text(2)],
    [text(3), encoded(4, 4, 1), text(2)],
    # a video whose frames reach further than its rows and columns, and one behind a picture
    [text(2), animated(8, 2, 4), text(3)],
    [encoded(2, 4), text(1), animated(4, 4, 4), text(2)],
]
CLASSES = {
    "qwen2_5_vl": "Qwen2_5_VLForConditionalGeneration",
    "qwen3_vl": "Qwen3VLForConditionalGeneration",
    "qwen3_vl_moe": "Qwen3VLMoeForConditionalGeneration",
}


def write_checkpoint(directory: Path, kind: str, **more: Any) -> str:
    """A model with heads that vLLM has kernels for, its weights, and a processor made of parts."""
    config = VISION_CONFIGS[kind](**more)
    config.architectures = [CLASSES[kind]]
    config.save_pretrained(directory)
    weights = checkpoint_tensors(random_policy(str(directory), torch.float32, 0).named_parameters())
    save_file({name: item.detach().contiguous() for name, item in weights}, directory / "model.safetensors")
    write_processor(directory, config)
    return str(directory)


def write_processor(directory: Path, config: PretrainedConfig) -> None:
    """vLLM makes one when it starts, and asks it nothing."""
    words = {SPECIAL.get(token, f"w{token}"): token for token in range(VOCABULARY)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="w0")),
        pad_token="w0",
        eos_token="w1",
        additional_special_tokens=list(SPECIAL.values()),
        extra_special_tokens={
            "image_token": SPECIAL[IMAGE],
            "video_token": SPECIAL[VIDEO],
            "vision_start_token": SPECIAL[START],
            "vision_end_token": SPECIAL[STOP],
        },
    )
    is_older = config.model_type == "qwen2_5_vl"
    processor, videos = (
        (Qwen2_5_VLProcessor, Qwen2VLVideoProcessor) if is_older else (Qwen3VLProcessor, Qwen3VLVideoProcessor)
    )
    processor(
        image_processor=Qwen2VLImageProcessor(patch_size=PATCH, merge_size=2),
        tokenizer=tokenizer,
        video_processor=videos(patch_size=PATCH, merge_size=2),
        chat_template="x",
    ).save_pretrained(directory)


def largest_difference(engine: RolloutEngine, model: PreTrainedModel) -> float:
    """Between log-probs of sampled tokens and the trainer's."""
    pictures = Column.binary(
        [PictureList.pack([item for item in prompt if isinstance(item, bytes)]) for prompt in PROMPTS]
    )
    kind = model.config.model_type
    prompts, rows = [np.array(showing(*prompt, kind=kind)) for prompt in PROMPTS], np.arange(2 * len(PROMPTS))
    responses = generate(engine, prompts, Sampling(seed=3), rows, 2, 12, pictures=pictures)
    columns = {
        "prompt_ids": Column.ragged([prompts[row // 2] for row in rows]),
        "response_ids": responses.response_ids,
        IMAGES: pictures.per_group_at(np.arange(0, len(rows), 2), len(rows)),
    }
    scorer = FSDPEngine(model, TrainSettings(trainable=False), CPU, reader=reader_of(model))
    expected = scorer.log_probs(Batch.build(rows, rows // 2, columns)).values
    return float(np.abs(expected - responses.log_probs.values).max())


ROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 6, 6], "mrope_interleaved": True}


MORE: dict[str, dict[str, Any]] = {
    "qwen2_5_vl": {"hidden_size": 128, "rope_parameters": ROPE | {"mrope_interleaved": False}},
    "qwen3_vl": {"rope_parameters": ROPE, "tie_word_embeddings": True},
    "qwen3_vl_moe": {"rope_parameters": ROPE, "moe_intermediate_size": 48},
}


def differences(rank: int, directory: Path, kind: str) -> list[float]:
    """With the weights that it starts with, with others, and with others that come without the tower's."""
    path = write_checkpoint(directory, kind, head_dim=32, **MORE[kind])
    model = load_policy(path, torch.float32, CPU)
    settings = VLLMSettings("float32", 8, longest_row=256)
    policy = PolicyByLayers.of_files(path, torch.float32)
    engine = load_start()(settings, path, policy, (END,), CPU, None, None, reader_of(model), is_of_tower)
    result = [largest_difference(engine, model)]
    second, third = (random_policy(path, torch.float32, seed) for seed in (7, 8))
    engine.load_weights(checkpoint_tensors((name, item.detach()) for name, item in second.named_parameters()), 1)
    result.append(largest_difference(engine, second))
    tower = {name: item for name, item in second.named_parameters() if is_of_tower(name)}
    third.load_state_dict(tower, strict=False)
    named = ((name, item.detach()) for name, item in third.named_parameters() if name not in tower)
    engine.load_weights(checkpoint_tensors(named), 2)
    result.append(largest_difference(engine, third))
    engine.close()
    return result


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen3_vl"])
def test_log_probs_are_those_of_the_trainer_before_and_after_new_weights(tmp_path: Path, kind: str) -> None:
    assert max(differences(0, tmp_path, kind)) < 1e-4


def test_so_are_those_of_a_mixture_of_experts(tmp_path: Path) -> None:
    """In a process of its own: vLLM keeps for good whether its first model has experts."""
    (result,) = run_fresh_ranks(1, differences, tmp_path / "ranks", tmp_path / "model", "qwen3_vl_moe")
    assert max(result) < 1e-4
