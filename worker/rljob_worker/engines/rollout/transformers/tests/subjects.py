"""A tiny engine, and requests that each get the same from it whatever runs beside them."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import torch

from rljob_worker.batch import Column
from rljob_worker.engines.models import random_policy
from rljob_worker.engines.rollout.requests import EndedRequests, Requests, Sampling
from rljob_worker.engines.rollout.transformers import TransformersRollout
from rljob_worker.engines.rollout.vocabulary import Vocabulary
from rljob_worker.engines.tests.builders import END, VOCABULARY, write_config

CPU = torch.device("cpu")
SAMPLING = Sampling(seed=7)
ROWS = 12
PROMPTS = [np.random.default_rng(length).integers(2, VOCABULARY, length) for length in (3, 9, 1, 60)]


LETTERS = Vocabulary(tuple(bytes([65 + token]) for token in range(VOCABULARY)), {"<end>": END})
"""Every token is one letter."""


def engine_of(room: int = 10**6, seed: int = 0) -> TransformersRollout:
    """room: tokens in the cache; two layers of two heads of 8 numbers of 8 bytes, twice."""
    with tempfile.TemporaryDirectory() as directory:
        policy = random_policy(write_config(Path(directory)), torch.float64, seed)
    return TransformersRollout(policy, CPU, (END,), 1.0, lambda: room * 512, LETTERS)


def asked(rows: Sequence[int], sampling: Sampling = SAMPLING, turn: int = 0) -> Requests:
    """Row r continues prompt r // 3 and may have 4 + 5 (r % 7) tokens."""
    row_ids = np.array(sorted(rows), np.int64)
    return Requests(
        row_ids,
        np.full_like(row_ids, turn),
        Column.ragged(PROMPTS),
        row_ids // 3,
        4 + 5 * (row_ids % 7),
        (sampling,),
    )


def as_rows(*parts: EndedRequests) -> dict[int, tuple[list[int], list[float], int]]:
    """Tokens, rounded log-probs and ending of every row."""
    return {
        int(row_id): (
            part.response_ids.row(at).tolist(),
            part.log_probs.row(at).round(4).tolist(),
            int(part.endings[at]),
        )
        for part in parts
        for at, row_id in enumerate(part.row_ids)
    }


def all_of(engine: TransformersRollout) -> dict[int, tuple[list[int], list[float], int]]:
    parts = []
    while len(ended := engine.advance()):
        parts.append(ended)
    return as_rows(*parts)


@cache
def one_by_one() -> dict[int, tuple[list[int], list[float], int]]:
    """What every row gets when it is alone in a fresh engine."""
    result = {}
    for row in range(ROWS):
        engine = engine_of()
        engine.submit(asked([row]))
        result |= all_of(engine)
    return result
