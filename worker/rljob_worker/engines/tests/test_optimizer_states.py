"""AdamW whose means are kept in fewer bytes: what a step makes of them, and checkpoints that fit any ranks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.catalogue.optimizers import OPTIMIZERS
from rljob_api.checks.options import SLOWEST_BFLOAT16
from rljob_api.memory.model_shape import parse_shape
from rljob_api.memory.parallel_layout import ParallelLayout
from rljob_worker.engines.fsdp import FSDPEngine, TrainSettings
from rljob_worker.engines.fsdp.optimizer import ByRows
from rljob_worker.engines.fsdp.optimizer import rule as rule_module
from rljob_worker.engines.fsdp.optimizer.adamw import FusedAdamW, adamw, adamw_step
from rljob_worker.engines.fsdp.optimizer.states import KeptState, block_of, quantization_table, states_of
from rljob_worker.engines.models import Adapter, random_policy
from rljob_worker.engines.tests.builders import CONFIGS, PolicyGradient, a_batch, mesh_of_all, save, write_config
from rljob_worker.engines.tests.ranks import run_ranks
from rljob_worker.errors import StorageError

CPU = torch.device("cpu")
WIDE = {"hidden_size": 128, "intermediate_size": 192}
"""Rows of 128 and of 192: blocks of 128 and of 64."""
FLOATS = TrainSettings(learning_rate=1e-2, total_steps=10, betas=(0.9, 0.99), min_unit_bytes=0)
HALVES, EIGHTHS = replace(FLOATS, states="BFloat16"), replace(FLOATS, states="Int8")
BATCH = a_batch([5, 1, 9, 3])


def means_of(local: torch.Tensor, number_format: str) -> dict[str, KeptState]:
    return states_of(local, OPTIMIZERS["AdamW"].states, number_format)


def engine_of(path: str, settings: TrainSettings, seed: int = 0, adapter: Adapter | None = None) -> FSDPEngine:
    model = random_policy(path, torch.float32, seed)
    return FSDPEngine(model, settings, CPU, mesh_of_all(), adapter=adapter)


def snapshot(engine: FSDPEngine) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in engine.weights(torch.float32)}


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize(
    ("shape", "block"),
    [
        ((7, 512), 256),
        ((7, 896), 128),
        ((7, 192), 64),
        ((7, 96), None),  # 32 are too few
        ((512,), None),
        ((4, 3, 128), 128),
        ((0, 256), 256),
    ],
)
def test_blocks_lie_within_rows(shape: tuple[int, ...], block: int | None) -> None:
    assert block_of(torch.Size(shape)) == block


def test_what_int8_leaves_in_float32_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for width, num_lines in ((64, 0), (80, 1)):
        path = write_config(tmp_path / str(width), hidden_size=width, intermediate_size=64, head_dim=16)
        engine_of(path, TrainSettings(states="Int8"))
        lines = [record.getMessage() for record in caplog.records if "Int8" in record.getMessage()]
        assert len(lines) == num_lines
    assert "matrices whose rows do not divide into blocks of 64 numbers, such as" in lines[0] and "of 80;" in lines[0]


@given(st.lists(st.integers(1, 2048), min_size=1, max_size=3))
def test_blocks_divide_rows_whoever_has_them(shape: list[int]) -> None:
    block = block_of(torch.Size(shape))
    if block is not None:
        assert torch.Size(shape[1:]).numel() % block == 0 and 64 <= block <= 256
    assert block_of(torch.Size([1, *shape[1:]])) == block  # the first row alone


def test_a_first_step_is_that_of_whole_means(tmp_path: Path) -> None:
    """From means of 0 the step is lr * g / |g| whatever they are kept in; what is kept shows from the second on."""
    path = write_config(tmp_path, **WIDE)
    engines = [engine_of(path, settings) for settings in (FLOATS, HALVES, EIGHTHS)]
    for engine in engines:
        engine.update(BATCH, PolicyGradient())
    whole, *others = map(snapshot, engines)
    for other in others:
        assert all(torch.allclose(whole[name], other[name], atol=1e-6) for name in whole)
    for engine in engines:
        for _ in range(4):
            engine.update(BATCH, PolicyGradient())
    whole, *others = map(snapshot, engines)
    for other in others:
        assert not same(whole, other)
        # five steps of at most 0.01 each
        assert all((whole[name] - other[name]).abs().max() < 0.01 for name in whole)


def test_numbers_are_kept_as_their_codes_say() -> None:
    """The largest of a block is its scale, with the last code or the first; 0.5 of it lies in a step of 0.9 / 64."""
    mean = means_of(torch.zeros(2, 64), "Int8")["exp_avg"]
    mean.write(slice(0, 1), torch.eye(1, 64) * 0.5)
    mean.write(slice(1, 2), torch.eye(1, 64) * -2.0)
    assert mean.kept[".scale"].tolist() == [[0.5], [2.0]]
    assert (mean.kept[".codes"][:, 0].tolist(), len(mean.kept[".codes"][:, 1:].unique())) == ([255, 0], 1)
    assert mean.read(slice(None), torch.float32)[:, :2].tolist() == [[0.5, 0.0], [-2.0, 0.0]]
    mean.write(slice(0, 1), torch.linspace(0, 1, 64)[None])
    assert (mean.read(slice(0, 1), torch.float32) - torch.linspace(0, 1, 64)).abs().max() <= 0.9 / 128 + 1e-6


# smaller ones, times the least of the table, are not numbers of Float32 any more
NUMBERS = st.floats(-1e4, 1e4, width=32).map(lambda number: number if abs(number) > 1e-25 else 0.0)


@given(st.lists(NUMBERS, min_size=64, max_size=64), st.booleans())
def test_what_is_rounded_is_the_nearest_number_there_is(numbers: list[float], signed: bool) -> None:
    """To within 1/14 of a number that is not small beside the largest of its block, and never 0 without a sign."""
    exact = torch.tensor([numbers])
    exact = exact if signed else exact.abs()
    mean = means_of(torch.zeros(1, 64), "Int8")["exp_avg" if signed else "exp_avg_sq"]
    mean.write(slice(None), exact)
    kept, largest = mean.read(slice(None), torch.float32), exact.abs().max()
    values = quantization_table(signed, CPU) * largest
    assert torch.equal((kept - exact).abs(), (values[:, None, None] - exact).abs().min(0).values) or largest == 0
    near = exact.abs() > 0.1 * largest
    assert ((kept - exact).abs()[near] <= exact.abs()[near] / 14).all()
    mean.write(slice(None), kept)
    assert torch.equal(mean.read(slice(None), torch.float32), kept)
    assert signed or largest == 0 or kept.min() > 0


def test_a_small_gradient_after_a_large_one_makes_no_large_step() -> None:
    """Beside a number a million times as large, a mean of squares of 0 would divide the step by next to nothing."""
    local = torch.nn.Parameter(torch.zeros(1, 64))
    rule = adamw({local: means_of(local, "Int8")}, EIGHTHS)
    for step, small in enumerate([1e-4, 1e-9], start=1):
        local.grad = torch.full((1, 64), small)
        local.grad[0, 0] = 10.0
        rule.step(1e-2, step)
        assert local.abs().max() <= step * 1e-2 + 1e-6


@pytest.mark.parametrize("at_once", [1 << 24, 200, 1])
@pytest.mark.parametrize("shape", [(5, 64), (7,), (3, 2, 64), (0, 64)])
def test_rounding_steps_are_those_of_the_fused_kernel_where_nothing_is_rounded(
    shape: tuple[int, ...], at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """at_once: numbers, of which rows of 64 make runs of all five, of three and two, and of one each."""
    monkeypatch.setattr(rule_module, "CHUNK_ELEMENTS", at_once)
    torch.manual_seed(0)
    settings = replace(FLOATS, weight_decay=0.1)
    left = torch.nn.Parameter(torch.randn(shape))
    right = torch.nn.Parameter(left.detach().clone())
    fused = FusedAdamW({left: means_of(left, "Float32")}, settings)
    rounding = ByRows({right: means_of(right, "Float32")}, settings, adamw_step)
    for step in range(1, 5):
        left.grad = torch.randn(shape)
        right.grad = left.grad.clone()
        for rule in (fused, rounding):
            rule.step(0.1 / step, step)
    assert torch.allclose(left, right, atol=1e-6)


@pytest.mark.parametrize("states", ["Float32", "BFloat16", "Int8"])
def test_what_has_no_gradient_stays_as_it_is(states: str) -> None:
    """Such as experts that nobody chose: no decay either, and means that wait."""
    settings = replace(FLOATS, states=states, weight_decay=0.1)
    with_one, without = (torch.nn.Parameter(torch.ones(2, 64)) for _ in range(2))
    means = {item: means_of(item, states) for item in (with_one, without)}
    rule = adamw(means, settings)
    with_one.grad = torch.ones(2, 64)
    rule.step(0.1, 1)
    assert (with_one < 1).all() and (without == 1).all()
    assert not any(mean.read(slice(None), torch.float32).abs().max() > 1e-9 for mean in means[without].values())


def kept_bytes(engine: FSDPEngine) -> int:
    assert engine.optimizer is not None
    return sum(tensor.nbytes for tensor in engine.optimizer.state().values() if tensor.ndim)


@pytest.mark.parametrize("settings", [FLOATS, HALVES, EIGHTHS], ids=lambda item: item.states)
def test_a_plan_counts_the_bytes(settings: TrainSettings, tmp_path: Path) -> None:
    large = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}
    engine = engine_of(write_config(tmp_path, **large), settings)
    shape = parse_shape(CONFIGS["qwen3"](**large).to_dict())
    assert shape is not None
    planned = ParallelLayout(shape, 1, 4, 4, on_cpu=True, states=settings.states).optimizer
    assert kept_bytes(engine) == pytest.approx(planned, rel=0.02)  # norms stay in Float32


def test_slow_means_stand_still_in_bfloat16_and_others_do_not() -> None:
    """Tries every number between two powers of two."""
    numbers = torch.arange(128, 256).float()
    follows = (numbers * SLOWEST_BFLOAT16).bfloat16().float()
    assert (follows < numbers).all()
    assert ((numbers * 0.997).bfloat16().float() == numbers).any()


def train(rank: int, path: str, directory: Path) -> dict[str, Any]:
    """Two updates; a checkpoint after the first."""
    result = {}
    for settings in (HALVES, EIGHTHS):
        engine = engine_of(path, settings)
        engine.update(BATCH, PolicyGradient())
        save(engine, directory / settings.states)
        engine.update(BATCH, PolicyGradient())
        result[settings.states] = snapshot(engine)
    return result


def go_on(rank: int, path: str, directory: Path) -> dict[str, Any]:
    """One more update from what others wrote, and what was read of it."""
    result = {}
    for settings in (HALVES, EIGHTHS):
        engine = engine_of(path, settings, seed=9)
        engine.load(directory / settings.states)
        save(engine, directory / f"{settings.states} again")
        engine.update(BATCH, PolicyGradient())
        result[settings.states] = snapshot(engine)
    return result


def in_turn(rank: int, path: str, alone: Path, together: Path) -> list[dict[str, Any]]:
    """On several ranks: train, go on from that, go on from what one rank wrote."""
    return [train(rank, path, together), go_on(rank, path, together), go_on(rank, path, alone)]


@pytest.mark.slow
def test_checkpoints_fit_any_number_of_ranks(tmp_path: Path) -> None:
    """Three ranks have unlike parts of 48 and of 192 rows, and of what has fewer than three one has none. All have the
    same rows, so that gradients are thrice those of one, and steps the same except for what rounding makes of them."""
    path, alone, together = write_config(tmp_path, **WIDE), tmp_path / "1", tmp_path / "3"
    whole = train(0, path, alone)
    everyone = run_ranks(3, in_turn, tmp_path / "ranks", path, alone, together)
    resumed = {1: go_on(0, path, alone), 3: go_on(0, path, together)}
    for states in ("BFloat16", "Int8"):
        assert same(resumed[1][states], whole[states])  # bit for bit on as many ranks
        for trained, same_ranks, from_one in everyone:
            assert same(trained[states], same_ranks[states])
            for result in (trained, from_one, resumed[3]):
                for name, tensor in whole[states].items():
                    assert torch.allclose(result[states][name], tensor, atol=2e-3), (states, name)


def test_states_of_another_format_are_not_read(tmp_path: Path) -> None:
    """A job that resumes is refused before (`lifetime.changes`); this is the last line."""
    path = write_config(tmp_path, **WIDE)
    save(engine_of(path, EIGHTHS), tmp_path / "saved")
    with pytest.raises(StorageError, match="damaged or of another model"):
        engine_of(path, FLOATS).load(tmp_path / "saved")
    engine_of(path, FLOATS).load(tmp_path / "saved", weights_only=True)


@pytest.mark.parametrize("settings", [HALVES, EIGHTHS], ids=lambda item: item.states)
def test_states_wait_on_the_host_as_whole_ones_do(settings: TrainSettings, tmp_path: Path) -> None:
    path = write_config(tmp_path, **WIDE)
    here, away = engine_of(path, settings), engine_of(path, replace(settings, offload_optimizer=True))
    for engine in (here, away):
        engine.sleep()
        for _ in range(2):
            engine.update(BATCH, PolicyGradient())
    assert same(snapshot(here), snapshot(away))


def test_an_adapter_has_them_too(tmp_path: Path) -> None:
    path = write_config(tmp_path, **WIDE)
    engine = engine_of(path, EIGHTHS, adapter=Adapter(path, 4, 8.0, ()))
    assert engine.optimizer is not None
    assert {name.rpartition(".")[2] for name in engine.optimizer.state()} >= {"codes", "scale"}
    before = snapshot(engine)
    engine.update(BATCH, PolicyGradient())
    engine.update(BATCH, PolicyGradient())
    assert not same(before, snapshot(engine))


@pytest.mark.gpu
@pytest.mark.parametrize("settings", [HALVES, EIGHTHS], ids=lambda item: item.states)
def test_on_an_accelerator_the_step_is_that_of_a_cpu(settings: TrainSettings, tmp_path: Path) -> None:
    path = write_config(tmp_path, **WIDE)
    here = engine_of(path, settings)
    there = FSDPEngine(random_policy(path, torch.float32, 0), settings, torch.device("cuda", 0), mesh_of_all())
    for engine in (here, there):
        for _ in range(2):
            engine.update(BATCH, PolicyGradient())
    result = snapshot(there)
    assert all(torch.allclose(tensor, result[name].cpu(), atol=1e-4) for name, tensor in snapshot(here).items())
