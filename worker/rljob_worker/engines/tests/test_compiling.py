"""Layers that are compiled compute what layers that are not do, forwards and backwards, in packs of any length."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.fx import GraphModule

from rljob_api.pipeline.meshes import Mesh
from rljob_api.planning.plan import Plan
from rljob_worker.engines.fsdp import BaseModel, FSDPEngine, TrainSettings
from rljob_worker.engines.models import Adapter, decoder_layers, random_policy
from rljob_worker.engines.parallel.mesh import ProcessMesh, single_rank_group
from rljob_worker.engines.parallel.tensor import split_layers
from rljob_worker.engines.registry import build_train_engine
from rljob_worker.engines.tests.builders import PolicyGradient, a_batch, mesh_here, write_config
from rljob_worker.engines.tests.ranks import run_ranks
from rljob_worker.engines.tests.uneven import assert_close
from rljob_worker.errors import InvalidJob
from rljob_worker.tests.documents import plan_of

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


def num_compiled() -> int:
    counters: int = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    return counters


@pytest.mark.slow
def test_compiled_layers_compute_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By all that the compiler does but C++: it traces, cuts, makes a backward pass and takes apart what layers call.
    Of three packs the second and the third find everything compiled."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager_decomp_partition"))
    torch._dynamo.reset()
    before, path = num_compiled(), write_config(tmp_path)
    plain, compiled = engine_of(path, PLAIN), engine_of(path, COMPILED)
    counts = []
    for lengths in ([5, 1, 9, 3], [4, 8, 2], [6, 2, 7, 7, 1]):
        batch = a_batch(lengths)
        ours, theirs = (engine.log_probs(batch).values for engine in (plain, compiled))
        assert np.abs(ours - theirs).max() < 1e-6
        metrics = [engine.update(batch, PolicyGradient()) for engine in (plain, compiled)]
        for name in ("update/loss", "update/gradient_norm"):
            assert metrics[0][name].value == pytest.approx(metrics[1][name].value, rel=1e-9)
        counts.append(num_compiled() - before)
    assert plain.can_lend_weights and not compiled.can_lend_weights
    left, right = (dict(engine.weights(torch.float64)) for engine in (plain, compiled))
    assert max(float((left[name] - right[name]).abs().max()) for name in left) < 1e-8
    assert counts[0] > 0 and counts == [counts[0]] * 3


@pytest.fixture
def compiler(own_environment: None) -> Iterator[None]:
    """The compiler that a job has: its threads end with the test."""
    yield
    pool = torch._inductor.async_compile.AsyncCompile.pool
    if pool.cache_info().currsize:
        pool().shutdown()
        pool.cache_clear()


@pytest.mark.slow
@pytest.mark.usefixtures("compiler")
def test_in_bfloat16_what_is_compiled_is_no_further_from_the_exact_numbers(tmp_path: Path) -> None:
    """With the compiler that a job has, which rounds less often: sums and products of a kernel stay in Float32. Of two
    packs the second finds everything compiled."""
    torch._dynamo.reset()
    path, packs = write_config(tmp_path), [a_batch([5, 1, 9, 3, 7, 7]), a_batch([4, 8, 2])]
    halves = replace(PLAIN, precision="BFloat16")
    engines = [engine_of(path, item) for item in (PLAIN, halves, replace(halves, compile=True))]
    for batch in packs:
        exact, *rounded = (engine.log_probs(batch).values for engine in engines)
        off, ours = (float(np.abs(item - exact).max()) for item in rounded)
        assert 0 < ours <= 1.5 * off
    norms = [engine.update(packs[0], PolicyGradient())["update/gradient_norm"].value for engine in engines]
    assert norms[2] == pytest.approx(norms[0], rel=0.02) and norms[2] != norms[1]
    before = num_compiled()
    engines[2].update(packs[1], PolicyGradient())
    assert num_compiled() == before > 0


class Parts:
    """A compiler that traces and cuts as the real one does, and leaves arithmetic and gradients to torch."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.compiled: list[GraphModule] = []
        torch._dynamo.reset()
        torch._dynamo.config.recompile_limit = 1  # torch gives up early, unless it is configured otherwise
        monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=self))

    def __call__(self, part: GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        self.compiled.append(part)
        return part.forward

    def of(self, path: str, *, with_adapter: bool = False, is_split: bool = False) -> int:
        """How many there are to score with a model and to learn. is_split: as where ranks split matrices, of whom this
        is the only one."""
        before, model = len(self.compiled), random_policy(path, torch.float64, 0)
        if with_adapter:
            Adapter(path, 2, 4.0, ()).put_beside(model, torch.float64)
        if is_split:
            split_layers(decoder_layers(model), single_rank_group())
        engine = FSDPEngine(model, replace(PLAIN, compile=True), CPU)
        engine.log_probs(a_batch([5, 1, 9]))
        engine.update(a_batch([5, 1, 9]), PolicyGradient())
        return len(self.compiled) - before

    def called(self) -> str:
        """All that they call, in a line each."""
        modules = [module for part in self.compiled for module in part.modules() if isinstance(module, GraphModule)]
        nodes = [node for module in modules for node in module.graph.nodes if node.op.startswith("call")]
        return "\n".join(str(node.target) for node in nodes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "number"),
    [
        pytest.param({}, 4, id="whole"),
        pytest.param({"is_split": True}, 8, id="split"),
        pytest.param({"with_adapter": True, "is_split": True}, 8, id="adapter, split"),
    ],
)
def test_layers_share_what_is_compiled_and_what_ranks_send_each_other_is_not(
    tmp_path: Path, kind: dict[str, bool], number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A layer more that were compiled by itself would, past a few of them, not be compiled at all. number: of the parts
    that attention cuts a layer into, and where ranks split matrices exchanges; each without gradients and with them."""
    parts = Parts(monkeypatch)
    assert parts.of(write_config(tmp_path, num_hidden_layers=3), **kind) == 2 * number
    called = parts.called()
    assert "linear" in called and not re.findall("attention|gather|scatter|reduce|c10d|autograd_function", called)


CASES = {
    "dp 2": (Mesh(dp=2), "Float64", False),
    "dp 2, adapter, halves": (Mesh(dp=2), "BFloat16", True),
    "tp 2, adapter": (Mesh(tp=2), "Float64", True),
    "cp 2, halves": (Mesh(cp=2), "BFloat16", False),
}
"""Who shares out what, the precision, and whether there is an adapter."""


def train(rank: int, path: str, case: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Two updates of layers that are not compiled, and of layers that are."""
    mesh, precision, has_adapter = CASES[case]
    ranks, adapter = mesh_here(mesh), Adapter(path, 2, 4.0, ()) if has_adapter else None
    spread = replace(SPREAD, precision=precision)
    torch._dynamo.reset()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
        return learn(path, spread, ranks, adapter), learn(path, replace(spread, compile=True), ranks, adapter)


def learn(path: str, settings: TrainSettings, ranks: ProcessMesh, adapter: Adapter | None) -> dict[str, Any]:
    before = num_compiled()
    engine = FSDPEngine(random_policy(path, settings.master_dtype, 0), settings, CPU, ranks, adapter=adapter)
    seen: dict[str, Any] = {"scores": [], "norms": []}
    for lengths in ([5, 1, 9, 3], [4, 8, 2]):
        scorers = [engine] if adapter is None else [engine, BaseModel(engine)]
        seen["scores"] += [scorer.log_probs(a_batch(lengths)).values for scorer in scorers]
        metrics = engine.update(a_batch(lengths), PolicyGradient())
        seen["norms"].append(metrics["update/gradient_norm"].value)
    graphs = num_compiled() - before
    weights = {item: tensor.clone() for item, tensor in engine.weights(torch.float64)}
    return seen | {"graphs": graphs, "weights": weights}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_on_several_ranks_compiled_layers_learn_the_same(tmp_path: Path, case: str) -> None:
    """By a compiler that traces and cuts as the real one does, and leaves arithmetic and gradients to torch."""
    path = write_config(tmp_path / "model")
    for plain, compiled in run_ranks(2, train, tmp_path / "ranks", path, case):
        near = case.endswith("halves")
        for ours, theirs in zip(compiled["scores"], plain["scores"], strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1 / 64 if near else 1e-6)
        assert compiled["norms"] == pytest.approx(plain["norms"], rel=0.02 if near else 1e-6)
        if not near:  # the first step of AdamW is the learning rate, or minus that, where a gradient is rounded away
            assert_close(compiled["weights"], plain["weights"], 1e-8)
        assert plain["graphs"] == 0 < compiled["graphs"]


def test_models_with_experts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidJob, match="models with experts are not compiled"):
        engine_of(write_config(tmp_path, "qwen3_moe"), COMPILED)


def test_what_the_plan_decides_to_compile_is_left_as_it_is_without_a_compiler_and_with_experts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    kinds = ("qwen3", "qwen3_moe")
    made = {kind: plan_of(models=[_random(write_config(tmp_path / kind, kind))]) for kind in kinds}
    with caplog.at_level(logging.WARNING):
        assert [_is_compiled(made[kind]) for kind in kinds] == [False, False]
    assert "layers are not compiled: g++ is not installed here" in caplog.text
    (tmp_path / "g++").touch(0o755)
    assert [_is_compiled(made[kind]) for kind in kinds] == [True, False]
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    with caplog.at_level(logging.WARNING):
        assert not _is_compiled(made["qwen3"])
    assert f"layers are not compiled: {tmp_path}/Python.h (of the package python3-dev) is not" in caplog.text
    asked = plan_of(models=[_random(write_config(tmp_path / "asked", "qwen3"))], training={"compile": True})
    assert _is_compiled(asked), "what a job asks for is not passed over"


def _random(path: str) -> dict[str, str]:
    return {"name": "actor", "path": path, "initialise": "Random"}


def _is_compiled(plan: Plan) -> bool:
    """Of an engine that is planned as on CUDA."""
    engine = plan.engine("train/actor").model_copy(update={"compiles": True})
    built = build_train_engine(plan, engine, CPU)
    assert isinstance(built, FSDPEngine)
    return built.settings.compile
