"""An optimizer that is not built in, whole in this file: declared, planned, trained with, checkpointed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rljob_api.catalogue.optimizers import OPTIMIZERS, DeclaredOptimizer, OptimizerState
from rljob_api.memory.model_shape import parse_shape
from rljob_api.memory.parallel_layout import ParallelLayout
from rljob_api.pipeline.meshes import Mesh
from rljob_api.planning.planner import plan
from rljob_api.tests.builders import make_job, problems
from rljob_worker.engines.fsdp import FSDPEngine, TrainSettings
from rljob_worker.engines.fsdp.optimizer import ByRows, KeptStates, UpdateRule
from rljob_worker.engines.fsdp.optimizer.rule import StepSettings
from rljob_worker.engines.models import random_policy
from rljob_worker.engines.tests.builders import CONFIGS, PolicyGradient, mesh_here, save, write_config
from rljob_worker.engines.tests.ranks import run_ranks
from rljob_worker.engines.tests.uneven import CPU, EXACT, assert_close, share, snapshot
from rljob_worker.engines.train_builders import train_settings
from rljob_worker.errors import InvalidJob

MOMENTUM = DeclaredOptimizer("Momentum", (OptimizerState("velocity"),), f"{__name__}:momentum")
SETTINGS = replace(EXACT, optimizer="Momentum", learning_rate=0.1, betas=(0.5, 0.0), weight_decay=0.1)
NAMED = "training.optimizer.name=Momentum"


def momentum(states: KeptStates, settings: TrainSettings) -> UpdateRule:
    return ByRows(states, settings, momentum_step)


def momentum_step(
    weights: torch.Tensor, gradient: torch.Tensor, states: Mapping[str, torch.Tensor], now: StepSettings
) -> None:
    """v = b v + g, w = (1 - rate decay) w - rate v."""
    velocity = states["velocity"].mul_(now.betas[0]).add_(gradient)
    weights.mul_(1 - now.learning_rate * now.weight_decay).sub_(velocity, alpha=now.learning_rate)


@contextmanager
def declared() -> Iterator[None]:
    OPTIMIZERS.built_in[MOMENTUM.name] = MOMENTUM
    try:
        yield
    finally:
        del OPTIMIZERS.built_in[MOMENTUM.name]


@pytest.fixture
def _declared() -> Iterator[None]:
    with declared():
        yield


def train(rank: int, path: str, mesh: Mesh, directory: Path, seed: int = 0) -> dict[str, torch.Tensor]:
    """Two updates and a checkpoint after the first; with another seed the second, from that."""
    with declared():
        ranks = mesh_here(mesh)
        engine = FSDPEngine(random_policy(path, torch.float64, seed), SETTINGS, CPU, ranks)
        if seed:
            engine.load(directory)
        else:
            engine.update(share(0, ranks), PolicyGradient())
            save(engine, directory)
        engine.update(share(2, ranks), PolicyGradient())
        return snapshot(engine)


@pytest.mark.parametrize("mesh", [Mesh(dp=2), Mesh(tp=2)], ids=["rows", "matrices"])
def test_two_ranks_train_and_resume_as_one(mesh: Mesh, tmp_path: Path) -> None:
    path = write_config(tmp_path / "model")
    one = train(0, path, Mesh(), tmp_path / "one")
    two = run_ranks(2, train, tmp_path / "ranks", path, mesh, tmp_path / "two")
    resumed = [train(0, path, Mesh(), tmp_path / "two", 9)]
    resumed += run_ranks(2, train, tmp_path / "again", path, mesh, tmp_path / "one", 9)
    for result in (*two, *resumed):
        assert_close(result, one, 1e-10)


@pytest.mark.usefixtures("_declared")
def test_its_steps_are_its_own(tmp_path: Path) -> None:
    """By hand, of gradients 1 and 3: v = 1, then 0.5 * 1 + 3."""
    path = write_config(tmp_path)
    engine = FSDPEngine(random_policy(path, torch.float64, 0), replace(SETTINGS, max_grad_norm=1e9), CPU)
    assert engine.optimizer is not None
    weights = next(iter(engine.optimizer.parameters.values()))
    expected = weights.detach().clone()
    for gradient, velocity in ((1.0, 1.0), (3.0, 3.5)):
        for parameter in engine.optimizer.parameters.values():
            parameter.grad = torch.full_like(parameter, gradient)
        engine.optimizer.step(engine.agreement)
        expected = expected * (1 - 0.1 * 0.1) - 0.1 * velocity
    torch.testing.assert_close(weights.detach(), expected, atol=1e-12, rtol=0)
    assert engine.optimizer.state().keys() == {
        "num_steps",
        *(f"{parameter}.velocity" for parameter in engine.optimizer.parameters),
    }


@pytest.mark.usefixtures("_declared")
@pytest.mark.parametrize("states", ["Float32", "BFloat16", "Int8"])
def test_a_plan_counts_what_it_declares(states: str, tmp_path: Path) -> None:
    large = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}
    model = random_policy(write_config(tmp_path, **large), torch.float32, 0)
    engine = FSDPEngine(model, replace(SETTINGS, precision="Float32", states=states), CPU)
    shape = parse_shape(CONFIGS["qwen3"](**large).to_dict())
    assert shape is not None and engine.optimizer is not None
    kept = sum(tensor.nbytes for tensor in engine.optimizer.state().values() if tensor.ndim)
    planned = ParallelLayout(shape, 1, 4, 4, on_cpu=True, states=states, num_states=1).optimizer
    assert kept == pytest.approx(planned, rel=0.02)  # norms stay in Float32


def optimizer_bytes(*overrides: str) -> int:
    shape = parse_shape(CONFIGS["qwen3"]().to_dict())
    assert shape is not None
    job = make_job(*overrides)
    (group,) = plan(job, shapes={model.path: shape for model in job.spec.models}).memory
    return group.phases[0].optimizer


@pytest.mark.usefixtures("_declared")
def test_a_job_names_it() -> None:
    made = plan(make_job(NAMED))
    assert train_settings(made, made.trainer_of("actor")).optimizer == "Momentum"
    assert 2 * optimizer_bytes(NAMED) == optimizer_bytes() > 0


def test_a_name_that_nobody_declares_is_refused_with_those_there_are() -> None:
    (problem,) = problems(NAMED)
    assert (problem.path, problem.found) == ("spec.training.optimizer.name", '"Momentum"')
    assert "AdamW" in problem.fix


def test_a_rule_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken: Any = replace(MOMENTUM, rule=f"{__name__}:nothing")
    monkeypatch.setitem(OPTIMIZERS.built_in, "Momentum", broken)
    with pytest.raises(InvalidJob, match="training.optimizer.name Momentum: .* has no 'nothing'"):
        FSDPEngine(random_policy(write_config(tmp_path), torch.float64, 0), SETTINGS, CPU)
