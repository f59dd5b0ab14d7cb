"""Expert parallelism: ranks share out the experts of every layer; tokens travel to those that they chose, and back.

Lepikhin et al., GShard, https://arxiv.org/abs/2006.16668. Two ranks, four experts, of which each token chose two:

    rank 0   own tokens, routed - to whom they chose - experts 0 1 - back - weighted, added up - own tokens
    rank 1   own tokens, routed - to whom they chose - experts 2 3 - back - weighted, added up - own tokens

A token travels once for every expert that it chose. Nothing is dropped, whatever the load: a rank computes as many
tokens as chose its experts. Its experts' gradients are those of all tokens, so that ranks with the same experts, and
they alone, add theirs up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from rljob_worker.engines.split import EXPERTS, Split, keep_parts

Compute = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Tokens [n, hidden], chosen experts and their weights [n, k] -> [n, hidden]."""


def experts_of(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The module with all experts of each layer that has some, in order."""
    return [module for name, module in model.named_modules() if name.rpartition(".")[2] == EXPERTS]


def spread_experts(model: torch.nn.Module, group: dist.ProcessGroup) -> list[torch.nn.Module]:
    """Leave this rank its run of the experts of every layer, with memory or without, and return the modules that have
    them. Every rank of the group then computes as many forward passes."""
    found = experts_of(model)
    for experts in found:
        keep_parts(experts, EXPERTS, Split.over(None, group))
        experts.num_experts //= group.size()
        experts.forward = partial(_compute, experts.forward, experts.num_experts, group)
    return found


def _compute(
    own_experts: Compute,
    num_own: int,
    group: dist.ProcessGroup,
    hidden: torch.Tensor,
    chosen: torch.Tensor,
    weights: torch.Tensor,
) -> torch.Tensor:
    """Of this rank's tokens [n, hidden], who chose experts of all ranks."""
    num_chosen = chosen.shape[1]
    visits = chosen.reshape(-1)
    order = torch.argsort(visits, stable=True)  # by expert, hence by rank
    sent, received = _agree(torch.bincount(visits // num_own, minlength=group.size()), group)
    travellers = hidden[:, None].expand(-1, num_chosen, -1).flatten(0, 1)[order]
    guests = _travel(travellers, sent, received, group)
    asked = _travel(visits[order] % num_own, sent, received, group)
    answers = _travel(_answered(own_experts, guests, asked), received, sent, group)
    home = torch.empty_like(order)
    home[order] = torch.arange(len(order), device=order.device)
    # in the order in which a token chose, whatever the ranks
    return (answers[home].unflatten(0, (-1, num_chosen)) * weights[..., None]).sum(1)


def _answered(own_experts: Compute, guests: torch.Tensor, asked: torch.Tensor) -> torch.Tensor:
    """What the experts make of the tokens [n, hidden], each for the one that it asked [n].

    One more token, of zeros and dropped afterwards: where nobody came the experts have gradients too, of zero, and take
    part in what ranks add up.
    """
    tokens = torch.cat([guests, guests.new_zeros(1, guests.shape[1])])
    experts = torch.cat([asked, asked.new_zeros(1)])
    return own_experts(tokens, experts[:, None], tokens.new_ones(len(tokens), 1))[:-1]


def _agree(sent: torch.Tensor, group: dist.ProcessGroup) -> tuple[list[int], list[int]]:
    """How many tokens go to each rank, and how many come from it."""
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    both: tuple[list[int], list[int]] = tuple(torch.stack([sent, received]).tolist())
    return both


def _travel(rows: torch.Tensor, sent: Sequence[int], received: Sequence[int], group: dist.ProcessGroup) -> torch.Tensor:
    """Rows [sum(sent), ...], those for each rank in turn -> [sum(received), ...]."""
    found: torch.Tensor = _Travel.apply(rows, list(sent), list(received), group)
    return found


class _Travel(torch.autograd.Function):
    """All to all with parts of any length, whose gradient goes back the same way."""

    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup
    ) -> torch.Tensor:
        ctx.sent, ctx.received, ctx.group = sent, received, group
        arrived = rows.new_empty((sum(received), *rows.shape[1:]))
        dist.all_to_all_single(arrived, rows.contiguous(), received, sent, group=group)
        return arrived

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        (gradient,) = gradients
        returned = gradient.new_empty((sum(ctx.sent), *gradient.shape[1:]))
        dist.all_to_all_single(returned, gradient.contiguous(), ctx.sent, ctx.received, group=ctx.group)
        return returned, None, None, None
