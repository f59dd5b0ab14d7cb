"""What is asleep is really free."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from rljob_worker.engines.models import random_policy
from rljob_worker.engines.rollout.generate import generate
from rljob_worker.engines.rollout.requests import Sampling
from rljob_worker.engines.rollout.transformers import TransformersRollout
from rljob_worker.engines.tests.builders import END, write_config
from rljob_worker.engines.tests.ranks import run_fresh_ranks

CPU = torch.device("cpu")
MIB = 1 << 20


def private_bytes() -> int:
    """Private memory of this process."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_Dirty"))


def sleep_twice(rank: int, path: str) -> list[dict[str, int]]:
    """What an engine held, what the kernel got back when it slept, and what it held then."""
    engine = TransformersRollout(random_policy(path, torch.float32, 0), CPU, (), owns_weights=True)
    weights = [(name, item.clone()) for name, item in engine.model.named_parameters()]
    result = []
    for version in (1, 2):
        engine.load_weights(weights, version)
        # 100 rows of 200 tokens that are written, and end with their first token
        generate(engine, [np.arange(200) % 40], Sampling(), np.arange(100), 100, 1)
        before, held = private_bytes(), engine.held_bytes("Weights")
        engine.sleep("Weights")
        result.append({"held": held, "freed": before - private_bytes(), "left": engine.held_bytes("Weights")})
    return result


@pytest.mark.slow
def test_a_process_that_sleeps_gives_its_memory_back_to_the_kernel(tmp_path: Path) -> None:
    # 24 MiB of embeddings, and as much of the last layer
    path = write_config(tmp_path / "model", vocab_size=200_000, head_dim=64)
    (phases,) = run_fresh_ranks(1, sleep_twice, tmp_path / "rank", path)
    for phase in phases:
        # 100 x 201 tokens of 2,048 bytes, and the weights
        assert phase["held"] >= 100 * 201 * 2048 + 48 * MIB
        assert phase["freed"] >= 0.9 * phase["held"]
        assert phase["left"] == 0


def test_weights_of_its_own_leave_and_come_back_and_lent_ones_stay(tmp_path: Path) -> None:
    policy = random_policy(write_config(tmp_path, tie_word_embeddings=True), torch.float64, 0)
    weights = [(name, item.detach().clone()) for name, item in policy.named_parameters()]
    lent, owned = TransformersRollout(policy, CPU, (END,)), TransformersRollout(policy, CPU, (END,), owns_weights=True)
    prompts, rows = [np.array([5, 6])], np.arange(3)
    before = generate(lent, prompts, Sampling(), rows, 3, 8)
    lent.sleep("Weights")
    assert generate(lent, prompts, Sampling(), rows, 3, 8).response_ids.values.tolist() == (
        before.response_ids.values.tolist()
    )
    assert owned.held_bytes("Cache") == 0 and owned.held_bytes("Weights") == sum(item.nbytes for _, item in weights)
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
    addresses = [parameter.data_ptr() for parameter in policy.parameters()]
    engine.load_weights([(name, item.detach() + 1) for name, item in policy.named_parameters()], version=2)
    assert [parameter.data_ptr() for parameter in policy.parameters()] == addresses
