"""The replaced norm against autograd on the formula."""

from __future__ import annotations

import pytest
import torch
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from rljob_worker.engines.rms_norm import RMSNorm, in_one_kernel, replace_rms_norms
from rljob_worker.engines.tests.fake_cuda import recorded


def test_a_norm_worked_by_hand() -> None:
    # mean of squares of [3, 4] is 12.5; with weight [1, 2]: [3, 8] / sqrt(12.5)
    out = RMSNorm.apply(torch.tensor([[3.0, 4.0]]), torch.tensor([1.0, 2.0]), 0.0)
    torch.testing.assert_close(out, torch.tensor([[3.0, 8.0]]) / 12.5**0.5)


def test_gradients_are_those_of_the_formula() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 5, dtype=torch.float64, generator=generator, requires_grad=True)
    weight = torch.randn(5, dtype=torch.float64, generator=generator, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, weight: RMSNorm.apply(x, weight, 1e-6), (x, weight))


class OtherRMSNorm(LlamaRMSNorm):
    """Norms the first half only."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return torch.cat([super().forward(hidden_states)[..., :2], hidden_states[..., 2:]], -1)


def test_only_norms_of_the_formula_are_replaced() -> None:
    other = OtherRMSNorm(4)
    replace_rms_norms(torch.nn.ModuleList([other]))
    assert type(other) is OtherRMSNorm


@pytest.mark.parametrize("kind", [LlamaRMSNorm, GemmaRMSNorm])  # the second adds 1 to its weight
def test_replaced_norms_compute_what_they_did(kind: type[torch.nn.Module]) -> None:
    ours, stock = kind(4), kind(4)
    torch.nn.init.normal_(ours.weight)
    stock.load_state_dict(ours.state_dict())
    replace_rms_norms(ours)
    assert type(ours) is not kind and isinstance(ours, kind)
    hidden = torch.randn(3, 4)
    torch.testing.assert_close(ours(hidden), stock(hidden))
    with torch.no_grad():
        torch.testing.assert_close(ours(hidden), stock(hidden))


@pytest.mark.parametrize("kind", [LlamaRMSNorm, GemmaRMSNorm])
def test_on_cuda_a_norm_in_bfloat16_is_one_kernel(kind: type[torch.nn.Module]) -> None:
    module = kind(64)
    replace_rms_norms(module)
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad(), recorded() as asked:
        hidden = torch.empty(3, 64, dtype=torch.bfloat16, device="cuda")
        module.weight = torch.nn.Parameter(torch.empty(64, dtype=torch.bfloat16, device="cuda"))
        assert module(hidden).dtype == torch.bfloat16
    assert asked.kernels["_fused_rms_norm"] == 1 and not asked.kernels["rsqrt"]


@pytest.mark.parametrize(("kind", "offset"), [(LlamaRMSNorm, 0.0), (GemmaRMSNorm, 1.0)])
def test_the_kernel_rounds_once_what_the_formula_gives(kind: type[torch.nn.Module], offset: float) -> None:
    module = kind(64).bfloat16()
    torch.nn.init.normal_(module.weight)
    hidden = torch.randn(3, 64).bfloat16()
    wide = hidden.double()
    exact = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * (module.weight.double() + offset)
    torch.testing.assert_close(in_one_kernel(module, offset, hidden).double(), exact, rtol=2**-7, atol=2**-7)


def test_in_bfloat16_a_norm_is_transformers_own_whatever_its_weight_is_kept_in() -> None:
    kept, cast = LlamaRMSNorm(64), LlamaRMSNorm(64)
    torch.nn.init.normal_(kept.weight)
    cast.load_state_dict(kept.state_dict())
    stock = cast.bfloat16()(hidden := torch.randn(3, 64).bfloat16())
    for module in (kept, cast):
        replace_rms_norms(module)
    kept.bfloat16()  # as sharded training does before a forward, after the norms were replaced
    assert torch.equal(kept(hidden), stock)
    assert torch.equal(cast(hidden), stock)
