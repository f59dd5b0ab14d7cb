"""Expert parallelism: ranks share out the experts of every layer; tokens travel to those that they chose, and back.

Lepikhin et al., GShard, https://arxiv.org/abs/2006.16668. Two ranks, four experts, of which each token chose two:

    rank 0   own tokens, routed - to whom they chose - experts 0 1 - back - weighted, added up - own tokens
    rank 1   own tokens, routed - to whom they chose - experts 2 3 - back - weighted, added up - own tokens

A token travels once for every expert that it chose. Nothing is dropped, whatever the load: a rank computes as many
tokens as chose its experts. Its experts' gradients are those of all tokens, so that ranks with the same experts, and
they alone, add theirs up.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist

from rljob_worker.algorithms.segments import segment_count
from rljob_worker.engines.parallel.exchange import exchange
from rljob_worker.engines.parallel.split import EXPERTS, Split, keep_parts

Compute = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Tokens [n, hidden], chosen experts and their weights [n, k] -> [n, hidden]."""


def experts_of(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The module with all experts of each layer that has some, in order."""
    return [module for name, module in model.named_modules() if name.rpartition(".")[2] == EXPERTS]


def spread_experts(model: torch.nn.Module, group: dist.ProcessGroup) -> list[torch.nn.Module]:
    """Leave this rank its run of the experts of every layer, with memory or without, and return the modules that have
    them. Every rank of the group then computes as many forward passes."""
    result = experts_of(model)
    for experts in result:
        keep_parts(experts, EXPERTS, Split.over(None, group))
        experts.num_experts //= group.size()
        experts.forward = partial(compute_with_experts, experts.forward, experts.num_experts, group)
    return result


def compute_with_experts(
    own_experts: Compute,
    num_own: int,
    group: dist.ProcessGroup,
    hidden: torch.Tensor,
    chosen: torch.Tensor,
    weights: torch.Tensor,
) -> torch.Tensor:
    """Outputs for this rank's tokens [n, hidden], which chose experts of all ranks."""
    num_chosen = chosen.shape[1]
    visits = chosen.reshape(-1)
    order = torch.argsort(visits, stable=True)  # by expert, hence by rank
    sent, received = agree_on_numbers(segment_count(visits // num_own, group.size()), group)
    travellers = hidden[:, None].expand(-1, num_chosen, -1).flatten(0, 1)[order]
    guests = exchange(travellers, group, sent, received)
    asked = exchange(visits[order] % num_own, group, sent, received)
    answers = exchange(_answered(own_experts, guests, asked), group, received, sent)
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


def agree_on_numbers(sent: torch.Tensor, group: dist.ProcessGroup) -> tuple[list[int], list[int]]:
    """How many tokens go to each rank, and how many come from it."""
    both: tuple[list[int], list[int]] = tuple(torch.stack([sent, exchange(sent, group)]).tolist())
    return both
