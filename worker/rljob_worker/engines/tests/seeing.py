"""Tiny models that see, pictures for them, and batches of prompts that show some."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import (
    AutoModelForImageTextToText,
    PretrainedConfig,
    Qwen2_5_VLConfig,
    Qwen3VLConfig,
    Qwen3VLMoeConfig,
)

from rljob_api.catalogue.columns import IMAGES
from rljob_worker.batch import Batch, Column
from rljob_worker.engines.picture_reader import PictureReader
from rljob_worker.vision.frame_sampling import VideoBudget, sampled_frames
from rljob_worker.vision.pictures import PictureList, picture_digest, read_header
from rljob_worker.vision.processing import Patches, PictureShape
from rljob_worker.vision.sizes import PixelBudget
from rljob_worker.vision.videos import is_video, read_video_header

VOCABULARY, END = 64, 1
IMAGE, VIDEO, START, STOP = 60, 61, 62, 63
PATCH, MERGED = 4, 4
"""Pixels of a patch's side, and patches of a feature: two by two."""
PATCH_VALUES = 3 * 2 * PATCH * PATCH

_TOKENS = {
    "image_token_id": IMAGE,
    "video_token_id": VIDEO,
    "vision_start_token_id": START,
    "vision_end_token_id": STOP,
}
_EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "decoder_sparse_step": 1,
    "norm_topk_prob": True,
}


def _decoder(**more: Any) -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 512,
        "initializer_range": 0.15,
        "bos_token_id": 0,
        "eos_token_id": END,
        "pad_token_id": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]},
        **more,
    }


def _tower(**more: Any) -> dict[str, Any]:
    return {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_heads": 2,
        "in_channels": 3,
        "patch_size": PATCH,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "out_hidden_size": 32,
        "initializer_range": 0.15,
        **more,
    }


def _qwen3_tower() -> dict[str, Any]:
    return _tower(num_position_embeddings=16, deepstack_visual_indexes=[0, 1])


VISION_CONFIGS: dict[str, Callable[..., PretrainedConfig]] = {
    "qwen2_5_vl": lambda **more: Qwen2_5_VLConfig(
        text_config=_decoder(**{"hidden_size": 64, **more}),
        vision_config=_tower(
            window_size=4 * PATCH, fullatt_block_indexes=[1], out_hidden_size=more.get("hidden_size", 64)
        ),
        **_TOKENS,
    ),
    "qwen3_vl": lambda **more: Qwen3VLConfig(text_config=_decoder(**more), vision_config=_qwen3_tower(), **_TOKENS),
    "qwen3_vl_moe": lambda **more: Qwen3VLMoeConfig(
        text_config=_decoder(**{**_EXPERTS, **more}), vision_config=_qwen3_tower(), **_TOKENS
    ),
}


def write_vision_config(directory: Path, kind: str, **more: Any) -> str:
    """A model directory without weights."""
    VISION_CONFIGS[kind](**more).save_pretrained(directory)
    return str(directory)


def stock_model(kind: str, seed: int = 0, **more: Any) -> Any:
    """As transformers has it, in float32; biases are drawn, too."""
    torch.manual_seed(seed)
    model = AutoModelForImageTextToText.from_config(VISION_CONFIGS[kind](**more), dtype=torch.float32)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.1)
    return model.eval()


def write_vision_model(directory: Path, kind: str, seed: int = 0, **more: Any) -> str:
    """A model directory with random weights, as transformers writes it."""
    stock_model(kind, seed, **more).save_pretrained(directory)
    return str(directory)


def encoded(height: int, width: int, seed: int = 0) -> bytes:
    """A PNG of so many patches, of random colours."""
    colours = np.random.default_rng([height, width, seed]).integers(0, 256, (height * PATCH, width * PATCH, 3))
    file = io.BytesIO()
    Image.fromarray(colours.astype(np.uint8)).save(file, "PNG")
    return file.getvalue()


def animated(frames: int, height: int, width: int, seed: int = 0) -> bytes:
    """A GIF of frames of so many patches, of random colours, four a second."""
    rng, size = np.random.default_rng([frames, height, width, seed]), (height * PATCH, width * PATCH, 3)
    images = [Image.fromarray(rng.integers(0, 256, size).astype(np.uint8)) for _ in range(frames)]
    file = io.BytesIO()
    images[0].save(file, "GIF", save_all=True, append_images=images[1:], duration=250)
    return file.getvalue()


ALL_FRAMES = VideoBudget(PixelBudget(1, 2**20), frames_per_second=100, max_frames=64)


@dataclass
class DrawnPictures:
    """A processor: patches of random numbers, which are a function of the picture. All frames of a video are seen."""

    opened: list[bytes] = field(default_factory=list)
    ahead: list[list[bytes]] = field(default_factory=list)
    """What was to be decoded ahead, call by call."""

    def shape(self, picture: bytes) -> PictureShape:
        video = sampled_frames(read_video_header(picture), ALL_FRAMES, 2) if is_video(picture) else None
        header = read_header(picture) if video is None else read_video_header(picture)
        height, width = (pixels // PATCH for pixels in header.size)
        frames = 1 if video is None else len(video.times)
        return PictureShape((frames, height, width), frames * height * width // MERGED, video)

    def read_ahead(self, pictures: Sequence[bytes]) -> None:
        self.ahead.append([bytes(picture) for picture in pictures])

    def patches(self, picture: bytes) -> Patches:
        self.opened.append(picture)
        shape = self.shape(picture)
        generator = np.random.default_rng(list(picture_digest(picture)))
        values = generator.normal(size=(int(np.prod(shape.grid)), PATCH_VALUES)).astype(np.float32)
        video = shape.video
        return Patches(values, np.array(shape.grid), video is not None, 0.0 if video is None else video.seconds)


def showing(*parts: bytes | Sequence[int], kind: str = "") -> list[int]:
    """Tokens of a prompt that shows pictures between others. kind: of the model; without it videos are written as for
    Qwen2.5-VL, with it their times are two tokens where that of the model has some."""
    tokens: list[int] = []
    for part in parts:
        if not isinstance(part, bytes):
            tokens += part
            continue
        shape = DrawnPictures().shape(part)
        frames, pad = (1, IMAGE) if shape.video is None else (shape.grid[0], VIDEO)
        if shape.video is None or not kind.startswith("qwen3"):
            tokens += [START, *[pad] * shape.num_tokens, STOP]
            continue
        for frame in range(frames):
            tokens += [2 + frame, 3, START, *[pad] * (shape.num_tokens // frames), STOP]
    return tokens


Prompt = Sequence[bytes | Sequence[int]]


def vision_batch(
    prompts: Sequence[Prompt], response_lengths: Sequence[int], group_size: int = 2, seed: int = 0, kind: str = ""
) -> Batch:
    """Rows with random responses and advantages; the rows of a group share a prompt."""
    rng = np.random.default_rng(seed)
    rows = np.arange(len(response_lengths))
    groups = rows // group_size
    tokens = Column.ragged([showing(*prompts[group], kind=kind) for group in groups])
    responses = Column.ragged([rng.integers(2, IMAGE, length) for length in response_lengths])
    blobs = [PictureList.pack([part for part in prompt if isinstance(part, bytes)]) for prompt in prompts]
    heads = np.flatnonzero(np.diff(groups, prepend=-1))
    columns = {
        "prompt_ids": tokens,
        "response_ids": responses,
        IMAGES: Column.binary([blobs[group] for group in groups[heads]]).per_group_at(heads, len(rows)),
        "advantages": Column.from_lengths(rng.normal(size=len(responses.values)), list(response_lengths)),
        "weight": Column.fixed(rng.uniform(0.5, 1.5, len(rows))),
    }
    return Batch.build(rows, groups, columns, tokens.lengths + responses.lengths)


def reader_of(model: Any, processor: DrawnPictures | None = None) -> PictureReader:
    return PictureReader.of(model, processor or DrawnPictures())


def text(length: int, seed: int = 0) -> list[int]:
    tokens: list[int] = np.random.default_rng(seed).integers(2, IMAGE, length).tolist()
    return tokens
