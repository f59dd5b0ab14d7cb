"""Routers of experts in one arithmetic, in place of transformers' own, and the routes that they choose.

p = softmax(W x); the k likeliest experts compute, and their outputs are added with p, or with p over the sum of the k.
Transformers takes p in float32 whatever it is given; here a float64 model stays in float64, so that its sums do not
depend on how rows are grouped.

Routes may be recorded where tokens are generated and followed where they are trained: then k experts are given, and p,
as it is now, weighs those. Ma et al., Stabilizing MoE Reinforcement Learning by Aligning Training and Inference
Routers, https://arxiv.org/abs/2510.11370.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F

from rljob_worker.errors import InvalidJob


def replace_routers(model: torch.nn.Module) -> None:
    result = routers(model)
    for layer, router in enumerate(result):
        router.routing = result[0].routing if layer else Routing(len(result), router.num_experts, router.top_k)
        router.forward = partial(_forward, router, layer)


def routers(model: torch.nn.Module) -> list[torch.nn.Module]:
    """In the order of the layers; none where a model has no experts."""
    return [module for module in model.modules() if type(module).__name__.endswith("TopKRouter")]


def routing_of(model: torch.nn.Module) -> Routing:
    """The routing of a model whose routers were replaced. Raises InvalidJob where it has none."""
    result = routers(model)
    if not result:
        raise InvalidJob(
            f"training.routerReplay: Rollout is for models with experts, and {type(model).__name__} has none; leave it "
            "out"
        )
    routing: Routing = result[0].routing
    return routing


class Routing:
    """The routes of one model: the experts of every token in every layer that has some, [tokens, layers, k]."""

    def __init__(self, num_layers: int, num_experts: int, num_chosen: int) -> None:
        self.none = np.empty((0, num_layers, num_chosen), np.uint8 if num_experts <= 256 else np.uint16)
        """Routes of no tokens: others have their shape and dtype."""
        self._followed: torch.Tensor | None = None
        self._chosen: list[torch.Tensor] | None = None

    def follow(self, routes: torch.Tensor | None) -> None:
        """Forward passes from here on are of these tokens, and take these routes, and so does what a backward pass
        computes again; None: they choose."""
        self._followed = routes

    @contextmanager
    def recording(self) -> Iterator[Recording]:
        """Record the routes of one forward pass."""
        self._chosen = []
        try:
            yield Recording(self._chosen, self.none.dtype)
        finally:
            self._chosen = None

    def choose(self, layer: int, probabilities: torch.Tensor, num_chosen: int) -> torch.Tensor:
        """int64 [tokens, k] of one layer."""
        followed = self._followed
        experts = likeliest(probabilities, num_chosen) if followed is None else followed[:, layer].long()
        if self._chosen is not None:
            self._chosen.append(experts)
        return experts


class Recording:
    """What the layers of one forward pass chose."""

    def __init__(self, chosen: list[torch.Tensor], dtype: np.dtype) -> None:
        self.chosen, self._dtype = chosen, dtype
        """int64 [tokens, k] of each layer that has experts and has computed."""

    def routes(self) -> np.ndarray:
        """[tokens, layers, k], in host memory."""
        routes: np.ndarray = torch.stack(self.chosen, 1).to(torch.int32).cpu().numpy().astype(self._dtype)
        return routes


def router_distribution(logits: torch.Tensor) -> torch.Tensor:
    """Over the experts [..., experts], in at least float32."""
    return torch.softmax(logits, dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))


def likeliest(probabilities: torch.Tensor, num_chosen: int) -> torch.Tensor:
    """The experts that a router chooses by itself, the likeliest first: int64 [tokens, k]."""
    return torch.topk(probabilities, num_chosen, dim=-1).indices


def _forward(
    router: torch.nn.Module, layer: int, hidden: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits [tokens, experts]; weights and experts, both [tokens, k]."""
    logits = F.linear(hidden.reshape(-1, router.hidden_dim), router.weight)
    probabilities = router_distribution(logits)
    experts = router.routing.choose(layer, probabilities, router.top_k)
    weights = probabilities.gather(-1, experts)
    if getattr(router, "norm_topk_prob", True):
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return logits, weights.to(logits.dtype), experts
