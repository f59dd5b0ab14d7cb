"""Tensor parallelism with sequence parallelism: ranks of a tensor-parallel group share the matrices of every layer, and
its tokens outside of them.

Shoeybi et al., Megatron-LM, https://arxiv.org/abs/1909.08053; Korthikanti et al., https://arxiv.org/abs/2205.05198.
A layer on two ranks, W = [W0; W1] by outputs for queries, keys, values and the way up, by inputs for the way back:

    rank 0   own tokens - norm - gather - W0 - heads or activation - V0 - add up and share out - own tokens
    rank 1   own tokens - norm - gather - W1 - heads or activation - V1 - add up and share out - own tokens

Matrices are split, and of an adapter beside one what has its split outputs or inputs; everything else each rank has
whole, and a part of the gradient of, which the ranks add up once in an optimizer step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from rljob_worker.engines.parallel.split import BY_INPUTS, BY_OUTPUTS, Split, keep_parts

Exchange = Callable[[torch.Tensor, dist.ProcessGroup], torch.Tensor]


def split_layers(layers: Iterable[torch.nn.Module], group: dist.ProcessGroup) -> None:
    """Leave this rank its part of every matrix of decoder layers, with memory or without. The model is then called with
    a rank's own tokens, and with the positions of those of the whole group."""
    split = Split.over(group)
    for layer in layers:
        for name, module in list(layer.named_modules()):
            keep_parts(module, name, split)
            if name.rpartition(".")[2] in BY_INPUTS:
                _add_up_outputs(module, group)
            if any(child in BY_OUTPUTS for child, _ in module.named_children()):
                module.register_forward_pre_hook(partial(_gathered, group), with_kwargs=True)


def _gathered(
    group: dist.ProcessGroup, _module: torch.nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The hidden states [1, own tokens, hidden] that attention or an MLP is called with, of the whole group."""
    if arguments:
        return (gathered_tokens(arguments[0], group), *arguments[1:]), options
    return arguments, {**options, "hidden_states": gathered_tokens(options["hidden_states"], group)}


def _add_up_outputs(module: torch.nn.Module, group: dist.ProcessGroup) -> None:
    """Sum over ranks the outputs of a linear layer that is split by inputs, its adapter's included."""
    linear = getattr(module, "base_layer", module)
    linear.__class__ = _WithoutBias
    module.forward = partial(_added_up, module.forward, linear, group)


class _WithoutBias(torch.nn.Linear):  # type: ignore[misc]
    """A class, which layers that are compiled share; a `forward` of each would be compiled anew."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return F.linear(hidden, self.weight)


def _added_up(
    compute: Callable[[torch.Tensor], torch.Tensor],
    linear: torch.nn.Module,
    group: dist.ProcessGroup,
    hidden: torch.Tensor,
) -> torch.Tensor:
    """[1, tokens, a rank's inputs] -> [1, own tokens, outputs]; the bias once."""
    summed = shared_out_tokens(compute(hidden), group)
    return summed if linear.bias is None else summed + linear.bias


@torch.compiler.disable  # type: ignore[untyped-decorator]
def gathered_tokens(own: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """Gather the tokens of all ranks, [1, own tokens, ...] -> [1, tokens, ...]; gradients are added up and shared out.
    Compiled layers are cut here, as at attention."""
    gathered: torch.Tensor = _Exchanged.apply(own, _gather, _share_out, group)
    return gathered


@torch.compiler.disable  # type: ignore[untyped-decorator]
def shared_out_tokens(parts: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """The sum over ranks of what each has of all tokens, [1, tokens, ...] -> [1, own tokens, ...]; gradients are
    gathered."""
    summed: torch.Tensor = _Exchanged.apply(parts, _share_out, _gather, group)
    return summed


class _Exchanged(torch.autograd.Function):  # type: ignore[misc]
    """What ranks make of their tokens on the way there, and of the gradients on the way back."""

    @staticmethod
    def forward(
        ctx: Any, tokens: torch.Tensor, there: Exchange, back: Exchange, group: dist.ProcessGroup
    ) -> torch.Tensor:
        ctx.back, ctx.group = back, group
        return there(tokens, group)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        return ctx.back(gradients[0], ctx.group), None, None, None


def _gather(own: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    whole = own.new_empty((1, own.shape[1] * group.size(), *own.shape[2:]))
    dist.all_gather_single(whole[0], own[0].contiguous(), group=group)
    return whole


def _share_out(parts: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    own = parts.new_empty((1, parts.shape[1] // group.size(), *parts.shape[2:]))
    dist.reduce_scatter_single(own[0], parts[0].contiguous(), group=group)
    return own


def add_up(gradients: list[torch.Tensor], group: dist.ProcessGroup, device: torch.device) -> None:
    """Sum over ranks the gradients of parameters that every rank has whole, each from its own tokens; in place, in one
    exchange on the device where ranks meet, wherever gradients wait."""
    if gradients:
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients]).to(device)
        dist.all_reduce(flat, group=group)
        for gradient, summed in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
            gradient.copy_(summed.view(gradient.shape))
