"""What is asleep is really free."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from rljob_api.tests.patience import PATIENCE_SECONDS
from rljob_worker.engines.models import random_policy
from rljob_worker.engines.rollout.generate import generate
from rljob_worker.engines.rollout.requests import Sampling
from rljob_worker.engines.rollout.transformers import TransformersRollout
from rljob_worker.engines.tests.builders import END, write_config

CPU = torch.device("cpu")
MIB = 1 << 20


def test_a_process_that_sleeps_gives_its_memory_back_to_the_kernel(tmp_path: Path) -> None:
    path = write_config(tmp_path, vocab_size=200_000)  # 24 MiB of embeddings, and as much of the last layer
    command = [sys.executable, "-m", "rljob_worker.engines.rollout.transformers.tests.sleeper", path]
    phases = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=5 * PATIENCE_SECONDS).stdout)
    for phase in phases:
        # 800 x 201 tokens of 256 bytes, and the weights
        assert phase["held"] >= 800 * 201 * 256 + 48 * MIB
        assert phase["freed"] >= 0.9 * phase["held"]
        assert phase["left"] == 0


def test_weights_of_its_own_leave_and_come_back_and_lent_ones_stay(tmp_path: Path) -> None:
    policy = random_policy(write_config(tmp_path, tie_word_embeddings=True), torch.float64, 0)
    weights = [(name, each.detach().clone()) for name, each in policy.named_parameters()]
    lent, owned = TransformersRollout(policy, CPU, (END,)), TransformersRollout(policy, CPU, (END,), owns_weights=True)
    prompts, rows = [np.array([5, 6])], np.arange(3)
    before = generate(lent, prompts, Sampling(), rows, 3, 8)
    lent.sleep("Weights")
    assert generate(lent, prompts, Sampling(), rows, 3, 8).response_ids.values.tolist() == (
        before.response_ids.values.tolist()
    )
    assert owned.held_bytes("Cache") == 0 and owned.held_bytes("Weights") == sum(each.nbytes for _, each in weights)
    owned.sleep("Weights")
    assert owned.held_bytes("Weights") == 0
    with pytest.raises(AssertionError, match="has not come whole"):
        owned.advance()
    owned.load_weights(weights, version=2)
    again = generate(owned, prompts, Sampling(), rows, 3, 8)
    assert again.response_ids.values.tolist() == before.response_ids.values.tolist()


def test_weights_that_did_not_sleep_are_renewed_where_they_are(tmp_path: Path) -> None:
    """Recorded steps know their addresses, and new memory costs more than the copy into it."""
    policy = random_policy(write_config(tmp_path), torch.float32, 0)
    engine = TransformersRollout(policy, CPU, (END,), owns_weights=True)
    addresses = [each.data_ptr() for each in policy.parameters()]
    engine.load_weights([(name, each.detach() + 1) for name, each in policy.named_parameters()], version=2)
    assert [each.data_ptr() for each in policy.parameters()] == addresses
