"""Tiny policies that act, and batches of decisions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from rljob_worker.batch import Batch, Column
from rljob_worker.engines.models.actions import MLPPolicyConfig
from rljob_worker.engines.rollout.generate import Responses, answer
from rljob_worker.engines.rollout.protocol import RolloutEngine
from rljob_worker.engines.rollout.requests import Requests, Sampling
from rljob_worker.random_bits import random_bits

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
    return Requests(
        row_ids=rows,
        turns=np.zeros_like(rows),
        prompts=Column.ragged([PROMPT] * len(rows)),
        prompt_of=np.arange(len(rows)),
        max_tokens=np.full_like(rows, NUM_TOKENS),
        samplings=(sampling,),
        **{"states": states_of(rows), **more},
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
