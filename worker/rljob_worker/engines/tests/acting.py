"""Tiny policies that act, and batches of decisions."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from rljob_worker.batch import Batch, Column
from rljob_worker.engines.models.actions import MLPPolicyConfig, OpenVLAConfig, OpenVLAOFTConfig
from rljob_worker.engines.picture_reader import PictureReader
from rljob_worker.engines.rollout.generate import Responses, answer
from rljob_worker.engines.rollout.protocol import RolloutEngine
from rljob_worker.engines.rollout.requests import Requests, Sampling
from rljob_worker.random_bits import random_bits
from rljob_worker.vision.fused_processing import FusedPictureProcessor, FusedRule
from rljob_worker.vision.pictures import PictureList

STATE_SIZE, BINS, CHUNK, DIMENSIONS = 3, 5, 2, 2
NUM_TOKENS = CHUNK * DIMENSIONS
PROMPT = np.array([BINS])
SAMPLING = Sampling(temperature=1.6, seed=5)


def write_mlp_config(directory: Path, **more: Any) -> str:
    """A model directory without weights."""
    tokens = {"bins": BINS, "chunk": CHUNK, "dimensions": DIMENSIONS}
    MLPPolicyConfig(
        **{
            "state_size": STATE_SIZE,
            "hidden_size": 8,
            "action_tokens": tokens,
            "initializer_range": 0.7,
            **more,
        }
    ).save_pretrained(directory)
    return str(directory)


def states_of(rows: np.ndarray) -> Column:
    """Numbers between -1 and 1, which depend on the row alone."""
    bits = random_bits(3, np.repeat(rows, STATE_SIZE), np.tile(np.arange(STATE_SIZE), len(rows)))
    values = (bits >> np.uint64(40)).astype(np.float64) * 2.0**-23 - 1.0
    return Column.from_lengths(values.astype(np.float32), np.full(len(rows), STATE_SIZE))


def asked(rows: np.ndarray, sampling: Sampling = SAMPLING, **more: Any) -> Requests:
    """Each of the rows wants a decision from a state of its own."""
    fields = {"prompts": Column.ragged([PROMPT] * len(rows)), "states": states_of(rows), **more}
    return Requests(
        row_ids=rows,
        turns=np.zeros_like(rows),
        prompt_of=np.arange(len(rows)),
        max_tokens=np.full_like(rows, NUM_TOKENS),
        samplings=(sampling,),
        **fields,
    )


def decided(engine: RolloutEngine, rows: np.ndarray) -> tuple[Batch, Responses]:
    """Decisions of an engine, as a batch that is learnt from, too: two rows are a group."""
    responses = answer(engine, asked(rows))
    advantages = np.random.default_rng(0).normal(size=len(responses.response_ids.values))
    columns = {
        "prompt_ids": Column.ragged([PROMPT] * len(rows)),
        "response_ids": responses.response_ids,
        "state": states_of(rows),
        "advantages": Column.from_lengths(advantages, responses.response_ids.lengths),
        "weight": Column.fixed(np.linspace(0.5, 1.5, len(rows))),
    }
    return Batch.build(rows, rows // 2, columns), responses


CPU = torch.device("cpu")

SIZE, PATCH = 8, 4
_TOWER = {"hidden": 16, "depth": 3, "heads": 2, "intermediate": 24, "patch": PATCH}
_TEXT = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
OPENVLA: dict[str, Any] = {
    "text_config": _TEXT,
    "image_sizes": [SIZE, SIZE],
    "vision_towers": [{**_TOWER, "registers": 2, "layer_scale": True}, {**_TOWER, "hidden": 24}],
    "pad_to_multiple_of": 4,
    "n_action_bins": 6,
    "action_dim": DIMENSIONS,
    "initializer_range": 0.2,
    "norm_stats": {"plane": {"action": {"q01": [-2.0, -2.0], "q99": [2.0, 2.0]}}},
}
"""Words 30 to 35 are actions, 36 is a picture's and 37 the state's."""


def write_openvla_config(directory: Path, kind: str = "openvla_oft", **more: Any) -> str:
    """A model directory without weights or processor."""
    config = {"openvla": OpenVLAConfig, "openvla_oft": OpenVLAOFTConfig}[kind]
    if kind == "openvla_oft":
        more = {"num_actions_chunk": CHUNK, **more}
    config(**OPENVLA, **more).save_pretrained(directory)
    return str(directory)


def picture_of(row: int) -> bytes:
    """A PNG that is another one for each row."""
    colours = np.random.default_rng(row).integers(0, 256, (12, 10, 3)).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(colours).save(file, "PNG")
    return file.getvalue()


FUSED = FusedRule(SIZE, ((0.5, 0.4, 0.3), (0.5, 0.5, 0.5)), ((0.2, 0.2, 0.2), (0.5, 0.5, 0.5)), 3, letterbox=False)


def fused_reader(model: Any) -> PictureReader:
    """What reads pictures for a tiny OpenVLA."""
    return PictureReader.of(model, FusedPictureProcessor(FUSED, PATCH))


def seen_by(rows: np.ndarray, *, pictures: int = 1, state: bool = False) -> dict[str, Any]:
    """What rows are shown, as fields of `Requests`: prompts of other lengths, each with pictures of its own."""
    shown = [36] * (SIZE // PATCH) ** 2 * pictures + [37] * state
    prompts = [np.array([1, *shown, *range(3, 6 + row % 3)]) for row in rows.tolist()]
    blobs = [PictureList.pack([picture_of(9 * row + at) for at in range(pictures)]) for row in rows.tolist()]
    states = {"states": states_of(rows)} if state else {"states": None}
    return {"prompts": Column.ragged(prompts), "pictures": Column.binary(blobs), **states}


def as_batch(shown: dict[str, Any], responses: Responses, rows: np.ndarray) -> Batch:
    """Decisions as a batch that is learnt from; two rows are a group."""
    advantages = np.random.default_rng(0).normal(size=len(responses.response_ids.values))
    columns = {
        "prompt_ids": shown["prompts"],
        "images": shown["pictures"],
        "response_ids": responses.response_ids,
        "advantages": Column.from_lengths(advantages, responses.response_ids.lengths),
        "weight": Column.fixed(np.linspace(0.5, 1.5, len(rows))),
    }
    if shown["states"] is not None:
        columns["state"] = shown["states"]
    return Batch.build(rows, rows // 2, columns)
