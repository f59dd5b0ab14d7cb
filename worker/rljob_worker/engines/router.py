"""Routers of experts in one arithmetic, in place of transformers' own.

p = softmax(W x); the k likeliest experts compute, and their outputs are added with p, or with p over the sum of the k.
Transformers takes p in float32 whatever it is given; here a float64 model stays in float64, so that its sums do not
depend on how rows are grouped.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F


def replace_routers(model: torch.nn.Module) -> None:
    for router in routers(model):
        router.forward = partial(_forward, router)


def routers(model: torch.nn.Module) -> list[torch.nn.Module]:
    """In the order of the layers; none where a model has no experts."""
    return [module for module in model.modules() if type(module).__name__.endswith("TopKRouter")]


def router_distribution(logits: torch.Tensor) -> torch.Tensor:
    """Over the experts [..., experts], in at least float32."""
    return torch.softmax(logits, dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))


def _forward(router: torch.nn.Module, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits [tokens, experts]; weights and experts, both [tokens, k]."""
    logits = F.linear(hidden.reshape(-1, router.hidden_dim), router.weight)
    weights, experts = torch.topk(router_distribution(logits), router.top_k, dim=-1)
    if router.norm_topk_prob:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return logits, weights.to(logits.dtype), experts
