"""Layers that are compiled compute what layers that are not do, forwards and backwards, in packs of any length."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rljob_api.pipeline.meshes import Mesh
from rljob_worker.engines.fsdp import FSDPEngine, TrainSettings
from rljob_worker.engines.models import Adapter, decoder_layers, random_policy
from rljob_worker.engines.parallel.mesh import single_rank_group
from rljob_worker.engines.parallel.tensor import split_layers
from rljob_worker.engines.tests.builders import PolicyGradient, a_batch, mesh_here, run_ranks, write_config
from rljob_worker.engines.tests.uneven import assert_close
from rljob_worker.errors import InvalidJob

CPU = torch.device("cpu")
pytestmark = pytest.mark.filterwarnings(
    "ignore:.torch.jit.script_method. is deprecated:DeprecationWarning",
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning",
)
"""What torch's compiler does, and warns itself of."""

PLAIN = TrainSettings(precision="Float64", learning_rate=1e-2, total_steps=10)
COMPILED = replace(PLAIN, compile=True, activation_checkpointing=True)
SPREAD = replace(PLAIN, tokens_per_micro_batch=14, min_unit_bytes=0, held_bytes=0)
"""Every layer is gathered by itself, and gradients are reduced after each micro-batch."""


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


def test_in_bfloat16_what_is_compiled_is_no_further_from_the_exact_numbers(tmp_path: Path) -> None:
    """With a real compiler, which rounds less often: sums and products of a kernel stay in Float32."""
    path, batch = write_config(tmp_path), a_batch([5, 1, 9, 3, 7, 7])
    halves = replace(PLAIN, precision="BFloat16")
    engines = [engine_of(path, each) for each in (PLAIN, halves, replace(halves, compile=True))]
    exact, *rounded = (engine.log_probs(batch).values for engine in engines)
    off, ours = (float(np.abs(each - exact).max()) for each in rounded)
    assert 0 < ours <= 1.5 * off
    norms = [engine.update(batch, PolicyGradient())["update/gradient_norm"].value for engine in engines]
    assert norms[2] == pytest.approx(norms[0], rel=0.02) and norms[2] != norms[1]


def num_graphs(path: str, monkeypatch: pytest.MonkeyPatch, *, with_adapter: bool, is_split: bool) -> int:
    """Parts of layers that are compiled, to score and to learn. is_split: as where ranks split matrices, of whom this
    is the only one."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    torch._dynamo.reset()
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    model = random_policy(path, torch.float64, 0)
    if with_adapter:
        Adapter(path, 2, 4.0, ()).put_beside(model, torch.float64)
    if is_split:
        split_layers(decoder_layers(model), single_rank_group())
    engine = FSDPEngine(model, replace(PLAIN, compile=True), CPU)
    engine.log_probs(a_batch([5, 1, 9]))
    engine.update(a_batch([5, 1, 9]), PolicyGradient())
    found: int = torch._dynamo.utils.counters["stats"]["unique_graphs"] - before
    return found


@pytest.mark.parametrize(
    "kind", [{}, {"is_split": True}, {"with_adapter": True, "is_split": True}], ids=["whole", "split", "adapter, split"]
)
def test_layers_share_what_is_compiled(tmp_path: Path, kind: dict[str, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer more that were compiled by itself would, past a few of them, not be compiled at all."""
    counts = []
    for layers in (1, 3):
        path = write_config(tmp_path / str(layers), num_hidden_layers=layers)
        counts.append(num_graphs(path, monkeypatch, **{"with_adapter": False, "is_split": False} | kind))
    assert counts[0] == counts[1] > 0


def train(rank: int, path: str, mesh: Mesh, precision: str, adapter: Adapter | None) -> dict[str, Any]:
    """Two updates of layers that are not compiled and of layers that are, by a compiler that traces and cuts as the
    real one does and leaves arithmetic and gradients to torch."""
    torch.compile = partial(torch.compile, backend="eager")  # type: ignore[assignment]
    found: dict[str, Any] = {}
    spread = replace(SPREAD, precision=precision)
    for name, settings in (("plain", spread), ("compiled", replace(spread, compile=True))):
        ranks = mesh_here(mesh)
        engine = FSDPEngine(random_policy(path, settings.master_dtype, 0), settings, CPU, ranks, adapter=adapter)
        seen: dict[str, Any] = {"scores": [], "norms": []}
        for lengths in ([5, 1, 9, 3], [4, 8, 2]):
            scorers = [engine] if adapter is None else [engine, engine.base]
            seen["scores"] += [scorer.log_probs(a_batch(lengths)).values for scorer in scorers]
            metrics = engine.update(a_batch(lengths), PolicyGradient())
            seen["norms"].append(metrics["update/gradient_norm"].value)
        seen["graphs"] = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        found[name] = seen | {"weights": {each: tensor.clone() for each, tensor in engine.weights(torch.float64)}}
    return found


@pytest.mark.parametrize(
    ("mesh", "precision", "adapter"),
    [
        (Mesh(dp=2), "Float64", False),
        (Mesh(dp=2), "BFloat16", True),
        (Mesh(tp=2), "Float64", True),
        (Mesh(cp=2), "BFloat16", False),
    ],
    ids=["dp 2", "dp 2, adapter, halves", "tp 2, adapter", "cp 2, halves"],
)
def test_on_several_ranks_compiled_layers_learn_the_same(
    tmp_path: Path, mesh: Mesh, precision: str, adapter: bool
) -> None:
    """Halves may be rounded at other places: a number has 8 bits, of a log-prob of about 4 the last is 1/64."""
    path = write_config(tmp_path / "model")
    beside = Adapter(path, 2, 4.0, ()) if adapter else None
    near = precision == "BFloat16"
    for found in run_ranks(2, train, tmp_path / "ranks", path, mesh, precision, beside):
        plain, compiled = found["plain"], found["compiled"]
        for ours, theirs in zip(compiled["scores"], plain["scores"], strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1 / 64 if near else 1e-6)
        assert compiled["norms"] == pytest.approx(plain["norms"], rel=0.02 if near else 1e-6)
        # two steps of AdamW, of at most 0.01 each
        assert_close(compiled["weights"], plain["weights"], 0.04 if near else 1e-8)
        assert plain["graphs"] == 0 < compiled["graphs"]


def test_models_with_experts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidJob, match="models with experts are not compiled"):
        engine_of(write_config(tmp_path, "qwen3_moe"), COMPILED)
