"""The divergence of whole distributions by hand, against autograd, and in an update."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from rljob_worker.engines.fsdp import FSDPEngine, TrainSettings
from rljob_worker.engines.log_probs.full_kl import full_kl
from rljob_worker.engines.models import random_policy
from rljob_worker.engines.tests.builders import Distillation, a_batch, write_config

SETTINGS = TrainSettings(temperature=0.8, precision="Float64", learning_rate=1e-2, total_steps=50)


def test_two_tokens_worked_by_hand() -> None:
    # at temperature 0.5: p = (1/4, 3/4) from logits [0, 0.5 ln 3], q = (1/2, 1/2)
    # KL = 1/4 ln(1/2) + 3/4 ln(3/2) = 0.130812
    logits = torch.tensor([[0.0, 0.5 * math.log(3)]]).repeat(2, 1)
    expected = 0.25 * math.log(0.5) + 0.75 * math.log(1.5)
    result = full_kl(logits, torch.zeros(2, 2), 0.5)
    torch.testing.assert_close(result, torch.tensor([expected, expected]))
    assert full_kl(logits, logits, 0.5).tolist() == [0.0, 0.0]


def test_updates_bring_a_policy_to_its_reference(tmp_path: Path) -> None:
    path, batch = write_config(tmp_path), a_batch([5, 1, 9, 3, 0, 7])
    reference = FSDPEngine(
        random_policy(path, torch.float64, 7),
        TrainSettings(temperature=0.8, precision="Float64", trainable=False),
        torch.device("cpu"),
    )
    engine = FSDPEngine(random_policy(path, torch.float64, 0), SETTINGS, torch.device("cpu"))
    losses = [engine.update(batch, Distillation(), reference=reference)["update/loss"].value for _ in range(30)]
    assert losses[-1] < 0.1 * losses[0]


def test_a_policy_does_not_diverge_from_itself(tmp_path: Path) -> None:
    path, batch = write_config(tmp_path), a_batch([5, 1, 9])
    engine, same = (FSDPEngine(random_policy(path, torch.float64, 0), SETTINGS, torch.device("cpu")) for _ in range(2))
    result = engine.update(batch, Distillation(), reference=same)
    assert result["update/loss"].value == pytest.approx(0.0, abs=1e-14)
    assert result["update/gradient_norm"].value == pytest.approx(0.0, abs=1e-12)


def test_without_a_reference_the_divergence_is_refused(tmp_path: Path) -> None:
    engine = FSDPEngine(random_policy(write_config(tmp_path), torch.float64, 0), SETTINGS, torch.device("cpu"))
    with pytest.raises(AssertionError, match="without a reference"):
        engine.update(a_batch([3]), Distillation())
