"""Layers that are compiled compute what layers that are not do, forwards and backwards, in packs of any length."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from rljob_worker.engines.fsdp import FSDPEngine, TrainSettings
from rljob_worker.engines.models import random_policy
from rljob_worker.engines.tests.builders import PolicyGradient, a_batch, write_config
from rljob_worker.errors import InvalidJob

CPU = torch.device("cpu")
pytestmark = pytest.mark.filterwarnings(
    "ignore:.torch.jit.script_method. is deprecated:DeprecationWarning",
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning",
)
"""What torch's compiler does, and warns itself of."""

PLAIN = TrainSettings(precision="Float64", learning_rate=1e-2, total_steps=10)
COMPILED = replace(PLAIN, compile=True, activation_checkpointing=True)


def engine_of(path: str, settings: TrainSettings) -> FSDPEngine:
    return FSDPEngine(random_policy(path, settings.master_dtype, 0), settings, CPU)


def test_compiled_layers_compute_the_same(tmp_path: Path) -> None:
    """With a real compiler, and the packs of three batches: the second and the third find everything compiled."""
    path = write_config(tmp_path)
    plain, compiled = engine_of(path, PLAIN), engine_of(path, COMPILED)
    counts = []
    for lengths in ([5, 1, 9, 3], [4, 8, 2], [6, 2, 7, 7, 1]):
        batch = a_batch(lengths)
        ours, theirs = (engine.log_probs(batch).values for engine in (plain, compiled))
        assert np.abs(ours - theirs).max() < 1e-6
        metrics = [engine.update(batch, PolicyGradient()) for engine in (plain, compiled)]
        for name in ("update/loss", "update/gradient_norm"):
            assert metrics[0][name].value == pytest.approx(metrics[1][name].value, rel=1e-9)
        counts.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert plain.can_lend_weights and not compiled.can_lend_weights
    left, right = (dict(engine.weights(torch.float64)) for engine in (plain, compiled))
    assert max(float((left[name] - right[name]).abs().max()) for name in left) < 1e-8
    assert counts[0] > 0 and counts == [counts[0]] * 3


def test_models_with_experts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidJob, match="models with experts are not compiled"):
        engine_of(write_config(tmp_path, "qwen3_moe"), COMPILED)
