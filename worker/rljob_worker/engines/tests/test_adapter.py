"""LoRA on one rank: the numbers of peft on stock transformers, the base under it, what is written and read back."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rljob_worker.algorithms.metric_accumulator import Measured
from rljob_worker.batch import Batch
from rljob_worker.engines.fsdp import BaseModel, FSDPEngine, TrainSettings
from rljob_worker.engines.fsdp.export.adapter_files import export_adapter
from rljob_worker.engines.models import (
    Adapter,
    WeightFiles,
    empty_policy,
    load_policy,
    random_policy,
    random_value_model,
)
from rljob_worker.engines.models.adapter import adapter_off, draw_adapter
from rljob_worker.engines.tests.builders import (
    Distillation,
    PolicyGradient,
    ValueRegression,
    a_batch,
    export_of,
    save,
    write_config,
    write_model,
)
from rljob_worker.errors import InvalidJob

CPU = torch.device("cpu")
SETTINGS = TrainSettings(temperature=0.8, precision="Float64", learning_rate=1e-2, max_grad_norm=0.5)
BATCH = a_batch([5, 1, 9, 3, 0, 7])


def adapter(path: str, **changes: object) -> Adapter:
    return Adapter(**{"base": path, "rank": 4, "alpha": 6.0, "targets": (), **changes})


def adapted(path: str, settings: TrainSettings = SETTINGS, **changes: object) -> FSDPEngine:
    model = empty_policy(path, settings.dtype)
    return FSDPEngine(model, settings, CPU, weights=WeightFiles.find(path), adapter=adapter(path, **changes))


def trained(path: str, settings: TrainSettings = SETTINGS, **changes: object) -> FSDPEngine:
    engine = adapted(path, settings, **changes)
    for _ in range(3):
        assert engine.update(BATCH, PolicyGradient())["update/gradient_norm"].value > 0
    return engine


def stock_log_probs(model: torch.nn.Module, batch: Batch, temperature: float) -> np.ndarray:
    """Row by row, as transformers computes logits."""
    result = []
    for prompt, response in zip(batch.values_of("prompt_ids"), batch.values_of("response_ids"), strict=True):
        ids = torch.tensor([[*prompt, *response]])
        with torch.no_grad():
            log_probs = (model(ids).logits[0] / temperature).log_softmax(-1)
        start = len(prompt) - 1
        result += [float(log_probs[start + i, token]) for i, token in enumerate(response)]
    return np.array(result)


@pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False but the target module is `Conv1D`")  # peft mends it
@pytest.mark.parametrize("kind", ["qwen3", "gpt2"])
def test_log_probs_are_those_of_peft_on_stock_transformers_and_of_the_merged_model(tmp_path: Path, kind: str) -> None:
    from peft import PeftModel

    path = write_model(tmp_path / "model", kind)
    engine = trained(path)
    save(engine, tmp_path / "checkpoint")
    export_adapter(tmp_path / "checkpoint", tmp_path / "adapter")
    export_of(engine, tmp_path / "merged")
    stock = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float64)
    base = stock_log_probs(stock, BATCH, 0.8)
    ours = engine.log_probs(BATCH).values
    assert np.abs(ours - base).max() > 1e-3
    with_peft = PeftModel.from_pretrained(stock, tmp_path / "adapter", autocast_adapter_dtype=False)
    np.testing.assert_allclose(ours, stock_log_probs(with_peft.double(), BATCH, 0.8), atol=1e-6)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float64)
    np.testing.assert_allclose(ours, stock_log_probs(merged, BATCH, 0.8), atol=1e-6)
    np.testing.assert_allclose(BaseModel(engine).log_probs(BATCH).values, base, atol=1e-6)
    assert np.array_equal(engine.log_probs(BATCH).values, ours)  # on again after it was off


def test_an_adapter_begins_as_the_base_and_learns_what_peft_learns(tmp_path: Path) -> None:
    """One step of plain PyTorch on peft's own model, from the same A and B."""
    from peft import LoraConfig, get_peft_model

    path = write_model(tmp_path / "model")
    engine = adapted(path, targets=("q_proj", "mlp.down_proj"))
    assert np.array_equal(engine.log_probs(BATCH).values, BaseModel(engine).log_probs(BATCH).values)
    config = LoraConfig(r=4, lora_alpha=6, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM")
    stock = get_peft_model(AutoModelForCausalLM.from_pretrained(path, dtype=torch.float64), config).double()
    theirs = {name: p for name, p in stock.base_model.model.named_parameters() if p.requires_grad}
    ours = {name: p for name, p in engine.model.named_parameters() if p.requires_grad}
    assert theirs.keys() == ours.keys() and len(ours) == 8  # A and B of two layers in each of two
    with torch.no_grad():
        for name, parameter in theirs.items():
            parameter.copy_(ours[name])
    gradients = {}
    keep = engine.optimizer.clear
    engine.optimizer.clear = lambda: (gradients.update({n: p.grad.clone() for n, p in ours.items()}), keep())
    engine.settings = engine.optimizer.settings = replace(SETTINGS, max_grad_norm=1e9)
    engine.update(BATCH, Likelihood())
    (-log_prob_sum(stock, BATCH, 0.8)).backward()
    for name, parameter in theirs.items():
        torch.testing.assert_close(gradients[name], parameter.grad, atol=1e-6, rtol=1e-5)  # float32 in their norms


def test_an_adapter_begins_as_far_from_zero_as_one_of_peft() -> None:
    from peft import LoraConfig, inject_adapter_in_model

    layers = torch.nn.ModuleDict({"up": torch.nn.Linear(256, 24), "down": torch.nn.Linear(24, 256)})
    torch.manual_seed(0)
    inject_adapter_in_model(LoraConfig(r=64, target_modules=["up", "down"]), layers)
    theirs = {name: p.detach().clone() for name, p in layers.named_parameters() if "lora" in name}
    draw_adapter(layers, seed=1)
    ours = {name: p.detach() for name, p in layers.named_parameters() if "lora" in name}
    assert len(ours) == 4
    for name, their in theirs.items():
        our, count = ours[name], their.numel()
        assert bool(our.any()) == bool(their.any()) == (".lora_A." in name)
        # the largest of `count` uniform numbers is closer to the bound than 20 / count, except one time in e^20
        assert float(our.abs().max()) == pytest.approx(float(their.abs().max()), rel=20 / count)
        assert float(our.mean()) == pytest.approx(0, abs=6 * float(their.abs().max()) / (3 * count) ** 0.5)


def test_adapters_are_alike_in_the_same_layer_with_the_same_seed_alone() -> None:
    from peft import LoraConfig, inject_adapter_in_model

    layers = torch.nn.ModuleDict({name: torch.nn.Linear(8, 8) for name in ("up", "down")})
    inject_adapter_in_model(LoraConfig(r=4, target_modules=["up", "down"]), layers)

    def drawn(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        draw_adapter(layers, seed)
        up, down = (p.detach().clone() for name, p in layers.named_parameters() if ".lora_A." in name)
        return up, down

    up, down = drawn(1)
    assert torch.equal(torch.cat(drawn(1)), torch.cat([up, down]))
    others = (down, *drawn(2))
    assert not any(torch.equal(up, other) for other in others)


def test_an_adapter_is_on_again_after_an_error_while_it_was_off(tmp_path: Path) -> None:
    engine = trained(write_model(tmp_path / "model"))
    before = engine.log_probs(BATCH).values
    with pytest.raises(ZeroDivisionError), adapter_off(engine.model):
        raise ZeroDivisionError
    assert np.array_equal(engine.log_probs(BATCH).values, before)


class Likelihood:
    """-sum(log_prob)."""

    columns = ()
    mask = None
    outputs = frozenset({"log_probs"})

    def counts(self, batch: Batch) -> dict[str, float]:
        return {}

    def __call__(self, tokens, counts):  # type: ignore[no-untyped-def]
        return -tokens.log_probs.sum(), Measured()


def log_prob_sum(model: torch.nn.Module, batch: Batch, temperature: float) -> torch.Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for prompt, response in zip(batch.values_of("prompt_ids"), batch.values_of("response_ids"), strict=True):
        if len(response):
            log_probs = (model(torch.tensor([[*prompt, *response]])).logits[0] / temperature).log_softmax(-1)
            places = torch.arange(len(prompt) - 1, len(prompt) + len(response) - 1)
            total = total + log_probs[places, torch.tensor(response)].sum()
    return total


def test_the_divergence_from_the_base_is_that_from_a_second_copy(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model")
    copy = FSDPEngine(load_policy(path, torch.float64, CPU), replace(SETTINGS, trainable=False), CPU)
    one, two = trained(path), trained(path)
    for _ in range(2):
        with_base = one.update(BATCH, Distillation(), reference=BaseModel(one))
        with_copy = two.update(BATCH, Distillation(), reference=copy)
        assert with_base["update/loss"].value == pytest.approx(with_copy["update/loss"].value, abs=1e-12) != 0
    assert same(one, two, 1e-12)


def same(one: FSDPEngine, two: FSDPEngine, tolerance: float = 0.0) -> bool:
    left, right = ({n: p.detach() for n, p in e.model.named_parameters() if p.requires_grad} for e in (one, two))
    assert left.keys() == right.keys()
    return all(float((left[name] - right[name]).abs().max()) <= tolerance for name in left)


@pytest.mark.parametrize("precision", ["Float64", "BFloat16"])
def test_a_checkpoint_is_the_adapter_alone_and_goes_on_bit_for_bit(tmp_path: Path, precision: str) -> None:
    path = write_model(tmp_path / "model")
    settings = replace(SETTINGS, precision=precision)
    straight = trained(path, settings)
    save(straight, tmp_path / "checkpoint")
    restored = adapted(path, settings)
    restored.load(tmp_path / "checkpoint")
    for engine in (straight, restored):
        engine.update(BATCH, PolicyGradient())
    assert same(straight, restored)
    whole = FSDPEngine(random_policy(path, settings.master_dtype, 0), settings, CPU)
    save(whole, tmp_path / "whole")
    sizes = [(tmp_path / name / "__0_0.distcp").stat().st_size for name in ("checkpoint", "whole")]
    num_trained = sum(p.numel() for p in straight.model.parameters() if p.requires_grad)
    assert sum(p.numel() for p in straight.optimizer.parameters.values()) == num_trained
    assert sizes[0] < sizes[1]
    dtypes = {p.requires_grad: p.dtype for p in straight.model.parameters()}
    assert dtypes == {True: settings.adapter_dtype, False: settings.dtype}


def test_a_checkpoint_of_another_adapter_or_of_none_is_refused_with_what_differs(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model")
    engine, whole = adapted(path), FSDPEngine(load_policy(path, torch.float64, CPU), SETTINGS, CPU)
    save(engine, tmp_path / "adapter")
    save(whole, tmp_path / "whole")
    other = adapted(path, rank=2, alpha=4.0, targets=("q_proj",))
    with pytest.raises(InvalidJob, match="rank is 4 there and 2 in this job, alpha is 6.0 there and 4.0 in this"):
        other.load(tmp_path / "adapter")
    elsewhere = write_model(tmp_path / "other", seed=3)
    with pytest.raises(InvalidJob, match=rf"base is '{path}' there and '{elsewhere}' in this job"):
        adapted(elsewhere).load(tmp_path / "adapter")
    with pytest.raises(InvalidJob, match="it holds a whole model, and this job trains an adapter"):
        engine.load(tmp_path / "whole")
    with pytest.raises(InvalidJob, match="it holds an adapter of .* and this job trains a whole model"):
        whole.load(tmp_path / "adapter")


def test_targets_that_match_nothing_are_refused_with_what_there_is(tmp_path: Path) -> None:
    path = write_config(tmp_path)
    for targets, named in ((("q_proj", "query"), "query"), (("lm_head",), "lm_head"), (("proj",), "proj")):
        with pytest.raises(InvalidJob, match=rf"targets: {named} match no linear layer .* there are down_proj, gate_"):
            FSDPEngine(random_policy(path, torch.float64, 0), SETTINGS, CPU, adapter=adapter(path, targets=targets))


def test_a_critic_trains_its_adapter_and_its_head(tmp_path: Path) -> None:
    path = write_config(tmp_path / "model")
    engine, again = (
        FSDPEngine(random_value_model(path, torch.float64, 0), SETTINGS, CPU, adapter=adapter(path)) for _ in range(2)
    )
    before = {name: p.detach().clone() for name, p in engine.model.named_parameters()}
    for _ in range(3):
        engine.update(BATCH, ValueRegression())
    changed = {name for name, p in engine.model.named_parameters() if not torch.equal(before[name], p)}
    assert changed == {name for name in before if "lora" in name or "value_head" in name}
    save(engine, tmp_path / "checkpoint")
    again.load(tmp_path / "checkpoint")
    assert np.array_equal(engine.values(BATCH).values, again.values(BATCH).values) and engine.values(BATCH).values.any()


def test_merged_weights_are_streamed_bucket_by_bucket(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model")
    engine = trained(path)
    small, large = dict(engine.weights(bucket_bytes=1)), dict(engine.weights())
    names = [name for name, _ in load_policy(path, torch.float64, CPU).named_parameters()]
    assert list(small) == names
    assert all(torch.equal(small[name], large[name]) for name in names)


def test_without_peft_the_package_to_install_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_config(tmp_path)
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(InvalidJob, match=r"needs peft, which is not installed: pip install 'rljob\[adapters\]'"):
        FSDPEngine(random_policy(path, torch.float64, 0), SETTINGS, CPU, adapter=adapter(path))
