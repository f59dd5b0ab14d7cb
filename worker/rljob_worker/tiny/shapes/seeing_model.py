"""A Qwen2.5-VL of less than half a million parameters: made from a seed, taught, and asked for greedy answers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from rljob_worker.tiny.model import stated_result
from rljob_worker.tiny.pretrain import IGNORED, collate
from rljob_worker.tiny.shapes.scenes import CELL, CELL_NAMES, CELLS_A_SIDE, Scene
from rljob_worker.tiny.tokenizer import train_tokenizer
from rljob_worker.vision.picture_tokens import PLACE
from rljob_worker.vision.processing import PictureProcessor
from rljob_worker.vision.sizes import PixelBudget

VISION_TOKENS = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>", "<|video_pad|>")
PROCESSOR = {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 14, "merge_size": 2}
BUDGET = PixelBudget(1024, (CELL * CELLS_A_SIDE) ** 2)
"""Pictures keep their size."""
SeenBatch = tuple[Tensor, Tensor, Tensor]
"""(tokens, labels) as `collate` makes them, and the patches of one picture a row, float32 [rows * patches, numbers]."""
_ANSWERED_AT_ONCE = 64


def build_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Words, digits and the tokens of pictures."""
    tokenizer = train_tokenizer(texts)
    tokenizer.add_tokens([*VISION_TOKENS], special_tokens=True)
    return tokenizer


def build_config(tokenizer: PreTrainedTokenizerFast) -> Qwen2_5_VLConfig:
    """Heads divide by two, so two tensor-parallel ranks can share the decoder. With a small base of the rotation two
    neighbouring columns differ by angles that so few layers tell apart: 10,000 makes that of columns 0.001."""
    start, image, end, video = tokenizer.convert_tokens_to_ids(list(VISION_TOKENS))
    return Qwen2_5_VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": 96,
            "intermediate_size": 192,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 24,
            "max_position_embeddings": 2048,
            "pad_token_id": tokenizer.pad_token_id,
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": tokenizer.eos_token_id,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1.5, "mrope_section": [4, 4, 4]},
        },
        vision_config={
            "depth": 1,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 2,
            "window_size": 112,
            "fullatt_block_indexes": [0],
            "out_hidden_size": 96,
        },
        vision_start_token_id=start,
        image_token_id=image,
        vision_end_token_id=end,
        video_token_id=video,
        tie_word_embeddings=True,
    )


def build_seeing_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen2_5_VLForConditionalGeneration:
    """The untrained model in float32, a function of `seed`; torch's global random state is left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen2_5_VLForConditionalGeneration(build_config(tokenizer))


def save(model: Qwen2_5_VLForConditionalGeneration, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """With the files of a processor, so that any program of transformers opens it."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    save_processor(folder)


def save_processor(folder: Path) -> None:
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))


def collate_seen(
    tokenizer: PreTrainedTokenizerFast, processor: PictureProcessor, said: Sequence[tuple[Scene, str]]
) -> SeenBatch:
    """Scenes with answers, in the order in which they come."""
    tokens, labels = collate(tokenizer, [(with_places(scene), answer) for scene, answer in said])
    return tokens, labels, patches_of(processor, [scene for scene, _ in said])


def with_places(scene: Scene) -> str:
    """The prompt with as many tokens as the picture has cells."""
    start, image, end, _ = VISION_TOKENS
    return scene.prompt().replace(PLACE, f"{start}{image * len(CELL_NAMES)}{end}")


def patches_of(processor: PictureProcessor, scenes: Sequence[Scene]) -> Tensor:
    return torch.cat([torch.from_numpy(processor.patches(scene.encoded()).pixel_values) for scene in scenes])


def seen_loss(
    model: Qwen2_5_VLForConditionalGeneration, tokens: Tensor, labels: Tensor, pixel_values: Tensor
) -> Tensor:
    """Mean cross-entropy of the answer tokens."""
    hidden = model.model(**inputs_of(model, tokens[:, :-1], pixel_values)).last_hidden_state
    wanted = labels[:, 1:] != IGNORED
    return torch.nn.functional.cross_entropy(model.lm_head(hidden[wanted]), labels[:, 1:][wanted])


def inputs_of(model: Qwen2_5_VLForConditionalGeneration, tokens: Tensor, pixel_values: Tensor) -> dict[str, Tensor]:
    """What a forward pass takes: every prompt shows a picture of the same size at the same place, so that the
    positions of one row are those of all."""
    patches = 2 * CELLS_A_SIDE
    grids = torch.tensor([[1, patches, patches]]).expand(len(tokens), 3)
    kinds = (tokens == model.config.image_token_id).long()
    positions, _ = model.model.get_rope_index(tokens[:1], kinds[:1], grids[:1])
    return {
        "input_ids": tokens,
        "position_ids": positions.expand(3, *tokens.shape),
        "pixel_values": pixel_values,
        "image_grid_thw": grids,
    }


def greedy_accuracy_of(
    model: Qwen2_5_VLForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    processor: PictureProcessor,
    scenes: Sequence[Scene],
    max_tokens: int = 32,
) -> float:
    """The share of scenes of which the greedy answer states the right number."""
    right = 0
    for first in range(0, len(scenes), _ANSWERED_AT_ONCE):
        part = scenes[first : first + _ANSWERED_AT_ONCE]
        texts = _greedy_texts(model, tokenizer, processor, part, max_tokens)
        right += sum(stated_result(text) == str(scene.count) for text, scene in zip(texts, part, strict=True))
    return right / len(scenes)


def _greedy_texts(
    model: Qwen2_5_VLForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    processor: PictureProcessor,
    scenes: Sequence[Scene],
    max_tokens: int,
) -> list[str]:
    """Without a cache: answers are short, and this is asked once."""
    pixels, end = patches_of(processor, scenes), tokenizer.eos_token_id
    tokens, _ = collate(tokenizer, [(with_places(scene), "") for scene in scenes])
    tokens = tokens[:, :-1]  # all prompts are equally long, and behind them is the end of an empty answer
    start = tokens.shape[1]
    for _ in range(max_tokens):
        with torch.inference_mode():
            hidden = model.model(**inputs_of(model, tokens, pixels)).last_hidden_state[:, -1]
            tokens = torch.cat([tokens, model.lm_head(hidden).argmax(-1)[:, None]], dim=1)
        if bool((tokens[:, start:] == end).any(1).all()):
            break
    rows = tokens[:, start:].tolist()
    return [tokenizer.decode(row[: row.index(end)] if end in row else row) for row in rows]
