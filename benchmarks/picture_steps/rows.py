"""Rows whose prompts show pictures, with the processor of a model in a folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rljob_api.catalogue.columns import IMAGES
from rljob_worker.batch import Batch, Column
from rljob_worker.vision.pictures import PictureList, read_header
from rljob_worker.vision.processing import PictureProcessor
from rljob_worker.vision.sizes import PixelBudget

START, IMAGE, END = 60, 61, 62
"""Tokens of pictures."""
Shown = Sequence[bytes | int]
"""A prompt: encoded pictures, and how many tokens of text are between them."""


def write_processor(folder: Path, patch_size: int) -> None:
    settings = {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": patch_size, "merge_size": 2}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))


def processor_of(path: str) -> PictureProcessor:
    """With the budget that jobs have by themselves."""
    return PictureProcessor.load(path, PixelBudget(32 * 32, 768 * 768))


def rows_with_pictures(prompts: Sequence[Shown], group_size: int, response: int, processor: PictureProcessor) -> Batch:
    """Rows with random responses of half to one and a half times `response` tokens, advantages and weights."""
    rng = np.random.default_rng(0)
    groups = np.arange(len(prompts) * group_size) // group_size
    tokens = [_tokens(prompt, processor, rng) for prompt in prompts]
    lengths = rng.integers(response // 2, response * 3 // 2, len(groups))
    prompt_ids = Column.ragged([tokens[group] for group in groups])
    blobs = [PictureList.pack([item for item in prompt if isinstance(item, bytes)]) for prompt in prompts]
    columns = {
        "prompt_ids": prompt_ids,
        "response_ids": Column.ragged([rng.integers(2, START, length) for length in lengths]),
        IMAGES: Column.binary(blobs).per_group_at(np.arange(len(prompts)) * group_size, len(groups)),
        "advantages": Column.from_lengths(rng.normal(size=int(lengths.sum())), lengths),
        "weight": Column.fixed(rng.uniform(0.5, 1.5, len(groups))),
    }
    return Batch.build(np.arange(len(groups)), groups, columns, prompt_ids.lengths + lengths)


def _tokens(prompt: Shown, processor: PictureProcessor, rng: np.random.Generator) -> list[int]:
    result: list[int] = []
    for item in prompt:
        if isinstance(item, bytes):
            result += [START, *[IMAGE] * processor.num_tokens(read_header(item).size), END]
        else:
            result += rng.integers(2, START, item).tolist()
    return result
