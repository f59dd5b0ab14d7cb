"""The load of experts in an update: what is counted, and what an uneven one costs.

With T response tokens in the mini-batch, E experts of which each token uses k, and in one layer

    f_i = how many of those tokens are routed to expert i, over T        P_i = mean of p_i over those tokens

the cost is coefficient x mean over layers of E sum_i f_i P_i: k when the load is even. Fedus et al., Switch
Transformers, https://arxiv.org/abs/2101.03961, eq. 4 to 6, over the whole mini-batch of all ranks as in Qiu et al.,
Demons in the Detail, https://arxiv.org/abs/2501.11873. A token is what a position predicts, so that prompts that rows
share count as often as they are read, and no number depends on how rows are split.

f has no gradient but is that of all micro-batches, and needed in each backward pass: where there are several, a pass
without gradients counts first. Routes that are followed (see `router`) are not a choice of the router, and not counted:
f is of the k experts that are likeliest to it.

Of a layer f and P are known to the ranks that have it, and nobody else needs them in a pass: pipeline stages, which are
not at the same pass at the same time, tell each other of theirs when all passes are made.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from rljob_worker.algorithms.segments import segment_count
from rljob_worker.engines.fsdp.collectives import Agreement
from rljob_worker.engines.fsdp.settings import TrainSettings
from rljob_worker.engines.micro_batch import MicroBatch
from rljob_worker.engines.models import ValueModel
from rljob_worker.engines.router import likeliest, router_distribution, routers
from rljob_worker.errors import InvalidJob
from rljob_worker.metrics.scalars import Scalar, mean


class Balance:
    """Watches the routers of one model; of a model without any it does nothing.

    begin; `watch` before every pass; `settle` behind the last forward pass; `end` behind all passes.
    """

    def __init__(
        self, watched: Sequence[torch.nn.Module], coefficient: float, device: torch.device, num_layers: int
    ) -> None:
        """num_layers: that have routers, over all pipeline stages; this one may have none of them."""
        self.coefficient = coefficient if num_layers else 0.0
        self._num_layers = num_layers
        shape = (len(watched), watched[0].num_experts if watched else 0)
        # of every expert: how many tokens it gets, and the sum of its probabilities
        self._load = torch.zeros((2, *shape), dtype=torch.float64, device=device)
        self._pull = torch.zeros(shape, dtype=torch.float64, device=device)
        self._num_chosen = watched[0].top_k if watched else 0
        self._weights: torch.Tensor | None = None
        self._counts = self._is_settled = False
        for layer, router in enumerate(watched):
            router.forward = partial(self._route, layer, router.forward)

    @staticmethod
    def of(model: torch.nn.Module, settings: TrainSettings, device: torch.device, num_layers: int) -> Balance:
        """Raises InvalidJob for a coefficient where there is nothing to balance."""
        result, num_layers = (routers(model), num_layers) if settings.trainable else ([], 0)
        coefficient = settings.router_aux_loss_coefficient
        if coefficient and settings.trainable and not num_layers and not isinstance(model, ValueModel):
            raise InvalidJob(
                f"training.routerAuxLossCoefficient: {coefficient} is for models with experts, and "
                f"{type(model).__name__} has none; leave it out"
            )
        if coefficient is None and num_layers:
            config = model.config.get_text_config()
            coefficient = config.router_aux_loss_coef if config.output_router_logits else 0.0
        return Balance(result, coefficient or 0.0, device, num_layers)

    def begin(self) -> None:
        self._load.zero_()
        self._is_settled = False

    def watch(self, rows: MicroBatch, *, counts: bool) -> None:
        """A pass of these rows follows. counts: a forward pass; what a backward pass computes again was counted."""
        if self._load.numel():
            is_counted = rows.num_rows > 0
            self._weights = segment_count(rows.predicts, rows.token_ids.shape[1]) if is_counted else None
            self._counts = counts

    def settle(self, agreement: Agreement) -> None:
        """All forward passes are made: the load is known, unless it was. Collective over a pipeline stage."""
        if not self._is_settled and self._load.numel():
            self._is_settled = True
            agreement.total(self._load)
            self._pull = self.coefficient * self._scale * self._load[0]

    def end(self, agreement: Agreement) -> dict[str, Scalar]:
        """The load of the fullest and of the emptiest expert of any layer, over the mean, and the cost without its
        coefficient. Collective over pipeline stages."""
        self._weights = None
        if not self._num_layers:
            return {}
        fullest, emptiest, cost = agreement.of_pipeline_stages(self._seen()).unbind(1)
        if not fullest.any():
            return {}
        return {
            "update/expert_load_max": mean(float(fullest.max())),
            "update/expert_load_min": mean(float(emptiest.min())),
            "update/expert_balance_loss": mean(float(cost.sum())),
        }

    def _seen(self) -> list[float]:
        """What the layers that are here have seen of the mini-batch."""
        if not self._load.numel() or not self._num_tokens:
            return [0.0, math.inf, 0.0]
        counts, probabilities = self._load
        load = counts / counts.mean(-1, keepdim=True)
        return [float(load.max()), float(load.min()), float((counts * probabilities).sum() * self._scale)]

    @property
    def _num_tokens(self) -> torch.Tensor:
        """Tokens of the mini-batch, once the load is known."""
        return self._load[0, 0].sum() / self._num_chosen

    @property
    def _scale(self) -> torch.Tensor:
        """What sum_i f_i P_i, in counts and sums of probabilities over layers, is multiplied by."""
        return self._load.shape[-1] / self._num_layers / self._num_tokens.clamp(min=1) ** 2

    def _route(self, layer: int, stock: Any, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        logits, scores, experts = stock(hidden)
        if self._weights is None:
            return logits, scores, experts
        if self._counts and not self._is_settled:
            self._count(layer, router_distribution(logits.detach()), self._weights)
        if self.coefficient and torch.is_grad_enabled():
            scores = _Balanced.apply(scores, logits, self._weights, self, layer)
        return logits, scores, experts

    def _count(self, layer: int, distribution: torch.Tensor, weights: torch.Tensor) -> None:
        weights, experts = weights.double(), likeliest(distribution, self._num_chosen)
        counts, probabilities = self._load
        counts[layer].index_add_(0, experts.reshape(-1), weights.repeat_interleave(self._num_chosen))
        probabilities[layer] += weights @ distribution.double()

    def pull(self, layer: int) -> torch.Tensor:
        """[experts]: the gradient of the cost by the probabilities of one token."""
        return self._pull[layer]


class _Balanced(torch.autograd.Function):  # type: ignore[misc]
    """Gives weights as they are; its backward pass adds the gradient of the cost, as it is known by then."""

    @staticmethod
    def forward(
        ctx: Any, scores: torch.Tensor, logits: torch.Tensor, weights: torch.Tensor, balance: Balance, layer: int
    ) -> torch.Tensor:
        ctx.save_for_backward(logits, weights)
        ctx.balance, ctx.layer = balance, layer
        return scores.view_as(scores)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        logits, weights = ctx.saved_tensors
        p = router_distribution(logits)
        pull = ctx.balance.pull(ctx.layer).to(p.dtype)
        of_logits = p * (pull - (p @ pull)[:, None]) * weights[:, None]  # dp_i / dz_j = p_i (delta_ij - p_j)
        return gradients[0], of_logits.to(logits.dtype), None, None, None
