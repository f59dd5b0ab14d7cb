"""The kernel of the last layer behind the interface of chunks of logits, by a stand-in with its signature."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from rljob_worker.engines.log_probs import fused, linear
from rljob_worker.engines.log_probs.linear import EntropyUse, LastLayer, LinearLogProbs, linear_log_probs
from rljob_worker.engines.tests.fake_cuda import CUDA, HOPPER
from rljob_worker.engines.tests.test_on_cuda import BF16, FP32, a_micro_batch

MODULE = "liger_kernel.ops.fused_linear_scaled_cross_entropy"
TOKENS, HIDDEN, VOCABULARY = 7, 16, 11
FIRST_WORD = 100


class Kernel:
    """What the package has under `LigerFusedLinearScaledCrossEntropyFunction`."""

    def __init__(self, error: Exception | None = None) -> None:
        self.calls = 0
        self.needs_gradients: list[bool] = []
        self._error = error

    def apply(
        self,
        _input: torch.Tensor,
        weight: torch.Tensor,
        target: torch.Tensor,
        temperature: float = 1.0,
        ignore_index: int = -100,
        m_tiles_per_cluster: int = 1,
        return_entropy: bool = False,
        selected_token_ids: torch.Tensor | None = None,
    ) -> Any:
        self.calls += 1
        self.needs_gradients.append(_input.requires_grad or weight.requires_grad)
        if self._error is not None:
            raise self._error
        assert type(return_entropy) is bool and ignore_index < 0 and selected_token_ids is None
        assert os.environ[fused.CHECKS_TARGETS] == "0"
        log_probs = torch.log_softmax((_input @ weight.t()).float() / temperature, -1)
        nll = -log_probs.gather(-1, target[:, None])[:, 0]
        entropy = -(log_probs.exp() * log_probs).sum(-1).bfloat16()
        return (nll, entropy) if return_entropy else nll


def install(monkeypatch: pytest.MonkeyPatch, kernel: Kernel | None) -> None:
    """kernel: None as if the package were absent."""
    module = None if kernel is None else ModuleType(MODULE)
    if module is not None:
        module.LigerFusedLinearScaledCrossEntropyFunction = kernel  # type: ignore[attr-defined]
    for name in ("liger_kernel", "liger_kernel.ops"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, MODULE, module)  # type: ignore[arg-type]
    monkeypatch.setattr(linear, "FUSED", fused.FusedLastLayer())
    monkeypatch.setenv(fused.CHECKS_TARGETS, "")  # what it becomes here does not outlast the test
    monkeypatch.delenv(fused.CHECKS_TARGETS)


@pytest.fixture
def suits(monkeypatch: pytest.MonkeyPatch) -> None:
    """This CPU counts as a device that there is a kernel for."""
    monkeypatch.setattr(linear, "suits", lambda hidden, weight: len(hidden) > 0)


def computed(entropy: EntropyUse) -> tuple[LinearLogProbs, tuple[torch.Tensor, ...]]:
    """Values of a last layer in BFloat16, and gradients of its hidden states and weight."""
    draw = torch.Generator().manual_seed(0)
    leaves = [torch.randn(n, HIDDEN, generator=draw).bfloat16().requires_grad_() for n in (TOKENS, VOCABULARY)]
    targets, weights = torch.tensor([3, 10, 0, 3, 5, 1, 9]), torch.linspace(-1, 2, TOKENS)
    last = LastLayer(*leaves, first_word=FIRST_WORD)
    result = linear_log_probs(last, targets + FIRST_WORD, 0.7, entropy=entropy)
    loss = (weights * result.log_probs).sum()
    if entropy == "Loss":
        assert result.entropy is not None
        loss = loss + (weights.flip(0) * result.entropy).sum()
    return result, torch.autograd.grad(loss, leaves)


@pytest.mark.usefixtures("suits")
@pytest.mark.parametrize("entropy", ["None", "Figure", "Loss"])
def test_the_kernel_gives_what_chunks_give(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, entropy: EntropyUse
) -> None:
    install(monkeypatch, None)
    chunks, expected = computed(entropy)
    caplog.clear()
    kernel = Kernel()
    install(monkeypatch, kernel)
    result, gradients = computed(entropy)
    assert kernel.calls == 1 and caplog.messages == []  # what it refuses comes from chunks
    torch.testing.assert_close(result.log_probs, chunks.log_probs)
    assert (result.entropy is None) == (chunks.entropy is None) == (entropy == "None")
    if result.entropy is not None and chunks.entropy is not None:
        assert result.entropy.dtype == torch.float32 and result.entropy.requires_grad == (entropy == "Loss")
        torch.testing.assert_close(result.entropy, chunks.entropy, atol=0, rtol=2**-8)
    for mine, theirs in zip(gradients, expected, strict=True):
        torch.testing.assert_close(mine, theirs, atol=0.03, rtol=0.03)


@pytest.mark.usefixtures("suits")
def test_scoring_asks_for_no_gradients_of_a_weight_that_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, kernel := Kernel())
    hidden, weight = torch.ones(1, HIDDEN).bfloat16(), torch.ones(VOCABULARY, HIDDEN).bfloat16().requires_grad_()
    for context in (torch.no_grad(), torch.enable_grad()):
        with context:
            linear_log_probs(LastLayer(hidden, weight), torch.tensor([3]), 0.7, entropy="None")
    assert kernel.needs_gradients == [False, True]


@pytest.mark.usefixtures("suits")
@pytest.mark.parametrize("kernel", [None, Kernel(RuntimeError("needs a Hopper GPU"))], ids=["absent", "refuses"])
def test_chunks_take_its_place_and_it_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kernel: Kernel | None
) -> None:
    monkeypatch.setattr(linear, "suits", lambda hidden, weight: False)
    expected = computed("Loss")[0].log_probs
    monkeypatch.setattr(linear, "suits", lambda hidden, weight: True)
    install(monkeypatch, kernel)
    with caplog.at_level(logging.WARNING):
        assert all(torch.equal(computed("Loss")[0].log_probs, expected) for _ in range(2))
    (said,) = caplog.messages
    assert "computed in chunks of logits" in said
    assert ("needs a Hopper GPU" if kernel else "liger_kernel") in said
    assert kernel is None or kernel.calls == 1


class Backward(torch.autograd.Function):  # type: ignore[misc]
    """What is there, and refuses its backward pass."""

    @staticmethod
    def forward(ctx: Any, item: torch.Tensor) -> torch.Tensor:
        return item.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no shared memory for 3 stages")


class RefusesBackward(Kernel):
    """A kernel whose backward pass is compiled, and fails, when the first gradient comes."""

    def apply(self, _input: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        return super().apply(Backward.apply(_input), *arguments, **options)


@pytest.mark.usefixtures("suits")
@pytest.mark.parametrize("entropy", ["None", "Figure", "Loss"])
def test_chunks_take_the_place_of_a_backward_pass_that_it_refuses(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, entropy: EntropyUse
) -> None:
    install(monkeypatch, None)
    _, expected = computed(entropy)
    caplog.clear()
    kernel = RefusesBackward()
    install(monkeypatch, kernel)
    with caplog.at_level(logging.WARNING):
        _, gradients = computed(entropy)
        computed(entropy)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(gradients, expected, strict=True))
    (said,) = caplog.messages
    assert "computed in chunks of logits" in said and "no shared memory" in said and kernel.calls == 1


@pytest.mark.usefixtures("suits")
def test_a_device_without_memory_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Kernel(torch.OutOfMemoryError("CUDA out of memory")))
    with pytest.raises(torch.OutOfMemoryError):
        computed("None")


@pytest.mark.usefixtures("suits")
def test_what_it_does_not_compute_is_left_to_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel()
    install(monkeypatch, kernel)
    hidden, weight, bias = torch.randn(2, 4), torch.randn(5, 4), torch.randn(5)
    targets = torch.tensor([0, 4])
    for last, reference in (
        (LastLayer(hidden, weight, bias), None),
        (LastLayer(hidden, weight, cap=1.0), None),
        (LastLayer(hidden, weight), LastLayer(hidden, weight)),
        (LastLayer(hidden[:0], weight), None),
    ):
        linear_log_probs(last, targets[: len(last.hidden)], 1.0, reference=reference)
    assert kernel.calls == 0
    linear_log_probs(LastLayer(hidden, weight), targets, 1.0)
    assert kernel.calls == 1


@pytest.mark.parametrize(("dtype", "calls"), [(BF16, 1), (FP32, 0)], ids=str)
def test_a_hopper_device_computes_the_last_layer_by_it_in_bfloat16(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, dtype: torch.dtype, calls: int
) -> None:
    kernel = Kernel()
    install(monkeypatch, kernel)
    asked = a_micro_batch(monkeypatch, tmp_path, "qwen3", dtype)
    assert kernel.calls == 2 * calls  # once more for what is made once in a process
    assert asked.waits == []


def test_other_devices_and_deterministic_jobs_do_without(monkeypatch: pytest.MonkeyPatch) -> None:
    capability = [HOPPER]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability[0])
    with torch._subclasses.FakeTensorMode():
        hidden, weight = (torch.empty(size, 8, dtype=BF16, device=CUDA) for size in (3, 5))
        assert fused.suits(hidden, weight) and not fused.suits(hidden[:0], weight)
        assert not fused.suits(hidden, weight.float()) and not fused.suits(hidden.float(), weight)
        torch.use_deterministic_algorithms(True)
        try:
            assert not fused.suits(hidden, weight)
        finally:
            torch.use_deterministic_algorithms(False)
        with monkeypatch.context() as rocm:
            rocm.setattr(torch.version, "hip", "7.1")
            assert not fused.suits(hidden, weight)
        capability[0] = (8, 0)
        assert not fused.suits(hidden, weight)
    capability[0] = HOPPER
    assert not fused.suits(torch.empty(3, 8, dtype=BF16), torch.empty(5, 8, dtype=BF16))
