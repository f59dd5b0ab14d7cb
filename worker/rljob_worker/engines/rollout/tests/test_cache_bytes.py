"""What the cache takes and what it may take, by hand and against a cache that was filled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import Qwen3Config

from rljob_worker.engines.models import random_policy
from rljob_worker.engines.models.families import FAMILIES
from rljob_worker.engines.rollout.cache_bytes import CacheRoom, cache_bytes_per_token
from rljob_worker.engines.rollout.generate import generate
from rljob_worker.engines.rollout.requests import Sampling
from rljob_worker.engines.rollout.transformers import TransformersRollout
from rljob_worker.engines.tests.builders import write_config
from rljob_worker.errors import InvalidJob

CPU = torch.device("cpu")
GIB = 2**30


def test_a_token_of_qwen3_8b() -> None:
    config = Qwen3Config(num_hidden_layers=36, num_attention_heads=32, num_key_value_heads=8, head_dim=128)
    assert cache_bytes_per_token(config, 2) == 147_456
    # 0.6 of 40 GiB is 25,769,803,776 bytes
    assert CacheRoom(40 * GIB, 0.6, 147_456).tokens == 174_762


@pytest.mark.parametrize("kind", sorted(FAMILIES))
def test_a_filled_cache_is_as_large_as_was_said(tmp_path: Path, kind: str) -> None:
    policy = random_policy(write_config(tmp_path, kind), torch.float32, 0)
    engine = TransformersRollout(policy, CPU, ())
    generate(engine, [np.array([5, 6, 7])], Sampling(), np.arange(4), 4, 10)
    # four rows of 3 and 10 tokens
    assert engine.held_bytes("Cache") == 4 * 13 * cache_bytes_per_token(policy.config, 4)


def test_no_room_for_one_row_is_said_with_the_numbers() -> None:
    room = CacheRoom(2 * GIB, 0.5, 1 << 20)  # 1024 tokens of 1 MiB
    room.require_row(3, 1024)
    with pytest.raises(InvalidJob, match="memoryFraction 0.5: of 2.00 GiB .* gets 1.00 .* row 4 .* 1536 .* 1.50"):
        room.require_row(3, 1536)
