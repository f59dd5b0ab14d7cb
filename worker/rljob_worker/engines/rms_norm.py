"""RMS norm with a backward pass of few passes over memory, put in place of transformers' own where they are equal.

y = w * x / sqrt(mean(x^2) + eps). Zhang & Sennrich 2019, https://arxiv.org/abs/1910.07467
Autograd's backward of the composed formula takes more than twice as long on a CPU, where norms are memory-bound.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F


class RMSNorm(torch.autograd.Function):  # type: ignore[misc]
    """forward(x [..., hidden], weight [hidden], eps) -> [..., hidden], in the dtype of x."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        normed, inverse = normalize(x, eps)
        ctx.save_for_backward(normed, weight, inverse)
        return normed * weight

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        (gradient,) = gradients
        normed, weight, inverse = ctx.saved_tensors
        product = gradient * normed
        of_weight = product.reshape(-1, product.shape[-1]).sum(0)
        pull = torch.matmul(product, weight).mul_(-1 / normed.shape[-1]).unsqueeze(-1)
        return torch.addcmul(gradient * weight, normed, pull).mul_(inverse), of_weight, None


def normalize(x: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """x over the root of its mean square, and one over that root [..., 1]."""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    inverse = torch.addcmul(constant(eps, x.dtype, x.device), norm, norm, value=1 / x.shape[-1]).rsqrt_()
    return x * inverse, inverse


def replace_rms_norms(model: torch.nn.Module) -> None:
    """Where a model has norms of this formula, with or without 1 added to the weight.

    They are ours for what comes in float32 or float64: transformers computes norms in float32 whatever it is given;
    here a float64 model stays in float64, so that its sums do not depend on how rows are grouped. What comes in fewer
    bits has one arithmetic too, whatever dtype the weights are kept in: on CUDA that of torch's kernel, which rounds
    once, elsewhere transformers' own.
    """
    for module in model.modules():
        kind: type = type(module)
        offset = _offset(kind)
        if offset is not None:
            module.__class__ = _replaced(kind, offset)


class _Replaced(torch.nn.Module):  # type: ignore[misc]
    """What a norm is, besides what its class is: another class and not another `forward` of each module, of which every
    layer would be compiled by itself."""

    offset: float

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        if hidden.dtype not in (torch.float32, torch.float64):
            if hidden.device.type == "cuda":
                return in_one_kernel(self, self.offset, hidden)
            stock: torch.Tensor = super().forward(hidden)
            return stock
        return _norm(self, self.offset, hidden)


@cache
def _replaced(kind: type[torch.nn.Module], offset: float) -> type[torch.nn.Module]:
    return type(kind.__name__, (_Replaced, kind), {"offset": offset})


def _norm(module: torch.nn.Module, offset: float, hidden: torch.Tensor) -> torch.Tensor:
    weight, eps = module.weight + offset if offset else module.weight, _epsilon(module)
    if torch.compiler.is_compiling():  # whose own backward pass is fused
        return hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + eps) * weight
    if torch.is_grad_enabled():
        return RMSNorm.apply(hidden, weight, eps)
    # the same numbers without the cost of a Function, which in decoding is more than that of the norm
    return normalize(hidden, eps)[0] * weight


def in_one_kernel(module: torch.nn.Module, offset: float, hidden: torch.Tensor) -> torch.Tensor:
    """Six operators otherwise, which a device computes faster than a host can ask for them. Compiled it is part of
    another kernel, with the same rounding."""
    weight = module.weight + offset if offset else module.weight
    return F.rms_norm(hidden, weight.shape, weight.to(hidden.dtype), _epsilon(module))


@cache
def constant(value: float, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """[] made once: adding a number to a tensor makes one each time, which costs more than the sum."""
    return torch.tensor(value, dtype=dtype, device=device)


@cache
def _offset(kind: type[torch.nn.Module]) -> float | None:
    """What a class adds to the weight, by what a small one computes; None where it has another formula, such as one
    that norms only a part."""
    if not kind.__name__.endswith("RMSNorm"):
        return None
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        small, hidden = kind(8), torch.randn(2, 8)
        small.weight.normal_()
        stock = small(hidden)
        for offset in (0.0, 1.0):
            if torch.allclose(_norm(small, offset, hidden), stock, atol=1e-5):
                return offset
    return None


def _epsilon(module: torch.nn.Module) -> float:
    return float(module.variance_epsilon if hasattr(module, "variance_epsilon") else module.eps)
