"""The replaced norm against autograd on the formula."""

from __future__ import annotations

import torch
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from rljob_worker.engines.rms_norm import RMSNorm, replace_rms_norms


def test_a_norm_worked_by_hand() -> None:
    # mean of squares of [3, 4] is 12.5; with weight [1, 2]: [3, 8] / sqrt(12.5)
    out = RMSNorm.apply(torch.tensor([[3.0, 4.0]]), torch.tensor([1.0, 2.0]), 0.0)
    torch.testing.assert_close(out, torch.tensor([[3.0, 8.0]]) / 12.5**0.5)


def test_gradients_are_those_of_the_formula() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 5, dtype=torch.float64, generator=generator, requires_grad=True)
    weight = torch.randn(5, dtype=torch.float64, generator=generator, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, weight: RMSNorm.apply(x, weight, 1e-6), (x, weight))


def test_only_norms_of_the_formula_are_replaced() -> None:
    llama, gemma = LlamaRMSNorm(4), GemmaRMSNorm(4)
    gemma.variance_epsilon = gemma.eps  # even with the attribute: its weight has 1 added
    torch.nn.init.normal_(gemma.weight)
    half = LlamaRMSNorm(4).bfloat16()
    replace_rms_norms(torch.nn.ModuleList([llama, gemma, half]))
    assert ["forward" in vars(module) for module in (llama, gemma, half)] == [True, False, False]
