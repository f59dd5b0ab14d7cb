"""What waits on the host between steps is the same bits, on any number of ranks, through checkpoints and sleep."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard

from rljob_worker.engines.fsdp import FSDPEngine, TrainSettings, sharding
from rljob_worker.engines.fsdp.optimizer import ShardedOptimizer
from rljob_worker.engines.fsdp.sharding import fsdp_units, shard
from rljob_worker.engines.models import random_policy
from rljob_worker.engines.protocols import TrainEngine
from rljob_worker.engines.tests.builders import PolicyGradient, a_batch, mesh_of_all, save, write_config
from rljob_worker.engines.tests.ranks import run_ranks

CPU = torch.device("cpu")
PLAIN = TrainSettings(
    precision="Float64", learning_rate=1e-2, total_steps=10, tokens_per_micro_batch=14, min_unit_bytes=0, held_bytes=0
)
OPTIMIZER = replace(PLAIN, offload_optimizer=True)
PARAMETERS = replace(PLAIN, offload_optimizer=True, offload_parameters=True)
BATCH = a_batch([5, 1, 9, 3])


def engine_of(path: str, settings: TrainSettings, seed: int = 0) -> FSDPEngine:
    return FSDPEngine(random_policy(path, settings.master_dtype, seed), settings, CPU, mesh_of_all())


def optimizer_of(engine: FSDPEngine) -> ShardedOptimizer:
    assert engine.optimizer is not None
    return engine.optimizer


def snapshot(engine: FSDPEngine) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in engine.weights(torch.float64)}


def train(rank: int, path: str, directory: Path) -> dict[str, Any]:
    """Two updates under each setting, the second after the first was written and read by an engine of another."""
    result: dict[str, Any] = {}
    settings = {"plain": PLAIN, "optimizer": OPTIMIZER, "parameters": PARAMETERS}
    for name, reader in zip(settings, ("parameters", "plain", "optimizer"), strict=True):
        engine = engine_of(path, settings[name])
        engine.update(BATCH, PolicyGradient())
        save(engine, directory / name)
        resumed = engine_of(path, settings[reader], seed=9)
        resumed.load(directory / name)
        resumed.update(BATCH, PolicyGradient())
        result[f"{name} -> {reader}"] = snapshot(resumed)
        engine.update(BATCH, PolicyGradient())
        result[name] = snapshot(engine)
        result[f"{name} log-probs"] = {"": torch.from_numpy(engine.log_probs(BATCH).values)}
        frozen = engine_of(path, replace(settings[name], trainable=False))
        result[f"{name} reference"] = {"": torch.from_numpy(frozen.log_probs(BATCH).values)}
    return result


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_where_things_wait_changes_no_bit(ranks: int, tmp_path: Path) -> None:
    path = write_config(tmp_path)
    several = run_ranks(ranks, train, tmp_path / "ranks", path, tmp_path) if ranks > 1 else []
    for result in several or [train(0, path, tmp_path)]:
        for suffix in ("", " log-probs", " reference"):
            for name in ("optimizer", "parameters"):
                assert same(result[f"plain{suffix}"], result[f"{name}{suffix}"]), name + suffix
        for resumed in ("plain -> parameters", "optimizer -> plain", "parameters -> optimizer"):
            assert same(result["plain"], result[resumed]), resumed


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def test_states_come_for_the_step_and_a_bucket_at_a_time(tmp_path: Path) -> None:
    engine = engine_of(write_config(tmp_path), OPTIMIZER)
    local = {name: p for name, p in engine.model.named_parameters()}
    largest = max(p.nbytes for p in local.values())
    optimizer = ShardedOptimizer(local, OPTIMIZER, engine.parts, bucket_bytes=largest)
    awake: list[int] = []
    for bucket in optimizer.buckets:
        step = bucket.rule.step
        bucket.rule.step = lambda *a, step=step: (awake.append(held(optimizer)), step(*a))  # type: ignore[method-assign]
    assert held(optimizer) == 0
    for p in local.values():
        p.grad = torch.ones_like(p)
    optimizer.step(engine.agreement)
    assert len(awake) > 2 and 0 < max(awake) <= 2 * largest
    assert held(optimizer) == 0


def held(optimizer: ShardedOptimizer) -> int:
    """Bytes of states that are not asleep, wherever they are."""
    return sum(bucket.states.held_bytes for bucket in optimizer.buckets)


@pytest.mark.parametrize("settings", [PLAIN, OPTIMIZER, PARAMETERS], ids=["plain", "optimizer", "parameters"])
def test_an_engine_that_slept_goes_on_as_if_it_had_not(settings: TrainSettings, tmp_path: Path) -> None:
    path = write_config(tmp_path)
    awake, slept = engine_of(path, settings), engine_of(path, settings)
    assert isinstance(slept, TrainEngine)
    for step in range(3):
        slept.sleep()
        slept.sleep()
        assert held(optimizer_of(slept)) == 0
        assert (slept.log_probs(BATCH).values == awake.log_probs(BATCH).values).all()
        if step == 1:  # what is asleep is written, and read into what is asleep
            save(slept, tmp_path / "asleep")
            slept = engine_of(path, settings, seed=9)
            slept.sleep()
            slept.load(tmp_path / "asleep")
        for engine in (awake, slept):
            engine.update(BATCH, PolicyGradient())
        assert same(snapshot(awake), snapshot(slept))


def test_on_cpus_nothing_would_be_given_back(tmp_path: Path) -> None:
    engine = engine_of(write_config(tmp_path), PLAIN)
    assert held(optimizer_of(engine)) > 0 and engine.held_bytes() == 0
    assert engine_of(write_config(tmp_path), replace(PLAIN, trainable=False)).held_bytes() == 0


@pytest.mark.parametrize(
    ("settings", "policy"),
    [(replace(PLAIN, precision="BFloat16"), OffloadPolicy), (OPTIMIZER, None), (PARAMETERS, CPUOffloadPolicy)],
    ids=["plain, sharded", "optimizer", "parameters"],
)
def test_every_unit_knows_where_its_parameters_wait(
    settings: TrainSettings, policy: type | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU, the only thing in which offloaded parameters differ from others."""
    noted = noted_policies(monkeypatch)
    engine = engine_of(write_config(tmp_path), settings)
    assert set(noted) == ({policy} if policy else set())
    assert len(noted) == len(fsdp_units(engine.model)) and (policy is None or len(noted) > 1)


def test_experts_that_lie_apart_wait_where_the_layers_around_them_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = noted_policies(monkeypatch)
    model = random_policy(write_config(tmp_path, "qwen3_moe"), torch.float64, 0)
    experts = [module for name, module in model.named_modules() if name.endswith(".experts")]
    shard(model, PARAMETERS, CPU, None, experts)
    units = fsdp_units(model)
    assert len(experts) == 2 and all(expert in units for expert in experts)
    assert noted == [CPUOffloadPolicy] * len(units)


def noted_policies(monkeypatch: pytest.MonkeyPatch) -> list[type[OffloadPolicy]]:
    """Record the offload policy of every unit that is made from now on."""
    noted: list[type[OffloadPolicy]] = []

    def noting(*arguments: Any, offload_policy: OffloadPolicy, **options: Any) -> Any:
        noted.append(type(offload_policy))
        return fully_shard(*arguments, offload_policy=offload_policy, **options)

    monkeypatch.setattr(sharding, "fully_shard", noting)
    return noted


def test_what_waits_on_the_host_is_not_lent(tmp_path: Path) -> None:
    path = write_config(tmp_path)
    assert engine_of(path, PLAIN).can_lend_weights
    assert not engine_of(path, PARAMETERS).can_lend_weights


@pytest.mark.gpu
@pytest.mark.parametrize("offload", [(False, False), (True, False), (True, True)])
def test_on_an_accelerator_what_sleeps_or_waits_is_gone_from_it(offload: tuple[bool, bool], tmp_path: Path) -> None:
    """And the update is that of the plain engine."""
    device = torch.device("cuda", 0)
    settings = replace(PLAIN, precision="Float32", offload_optimizer=offload[0], offload_parameters=offload[1])
    path = write_config(tmp_path)
    plain, engine = (
        FSDPEngine(random_policy(path, torch.float32, 0), item, device, mesh_of_all())
        for item in (replace(PLAIN, precision="Float32"), settings)
    )
    for item in (plain, engine):
        item.update(BATCH, PolicyGradient())
    before, held_bytes = torch.cuda.memory_allocated(), engine.held_bytes()
    assert (held_bytes == 0) == any(offload)
    engine.sleep()
    assert before - torch.cuda.memory_allocated() >= held_bytes and engine.held_bytes() == 0
    for item in (plain, engine):
        item.update(BATCH, PolicyGradient())
    theirs = snapshot(engine)
    assert all(torch.allclose(own.cpu(), theirs[name].cpu(), atol=1e-6) for name, own in snapshot(plain).items())
