"""GELU in one kernel: the values and gradients of transformers."""

import pytest
import torch
from transformers.activations import ACT2FN

from rljob_worker.engines.gelu import TanhGELU, replace_gelus
from rljob_worker.engines.models import random_policy
from rljob_worker.engines.tests.builders import write_config


def test_it_is_what_transformers_computes_and_so_is_its_gradient():
    stock = torch.nn.Sequential(ACT2FN["gelu_new"])
    hidden = torch.linspace(-6, 6, 101, dtype=torch.float64, requires_grad=True)
    expected = stock(hidden)
    (gradient,) = torch.autograd.grad(expected.square().sum(), hidden)
    replace_gelus(stock)
    result = stock(hidden)
    torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(torch.autograd.grad(result.square().sum(), hidden)[0], gradient, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("family, count", [("gpt2", 2), ("phi", 2), ("gemma2", 0)])
def test_families_of_this_formula_compute_it_in_one_kernel(tmp_path, family, count):
    model = random_policy(write_config(tmp_path, family), torch.float32, 0)
    hidden = torch.randn(4, requires_grad=True)
    result = [module(hidden).grad_fn.name() for module in model.modules() if isinstance(module, TanhGELU)]
    assert result == ["GeluBackward0"] * count
