"""The last layer in one kernel, which writes no logits to the device's memory.

Liger's fused linear scaled cross-entropy, https://github.com/linkedin/Liger-Kernel: of a last layer without bias and
cap, in BFloat16, on Hopper. For other devices that package has chunks of logits, as `linear` has. Compared with those,
entropies have the digits of BFloat16, and so has what adds up gradients of the weight, over 1,024 tokens at a time.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch

log = logging.getLogger(__name__)

HOPPER = (9, 0)
NO_TARGET = -100
"""The target of a token that is left out; none is here."""
CHECKS_TARGETS = "LIGER_SCALED_CE_SM90_VALIDATE_TARGETS"
"""Whether the kernel looks at its targets first, for which the host waits."""


InChunks = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, ...]]
"""From hidden states and weight to log-probs, and entropies where they are asked for, with gradients."""


class FusedLastLayer:
    """The kernel, until it is missing or refuses. What it does not compute is left to chunks of logits."""

    def __init__(self) -> None:
        self._is_missing = False

    def log_probs(
        self,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        targets: torch.Tensor,
        temperature: float,
        *,
        with_entropy: bool,
        chunks: InChunks,
    ) -> tuple[torch.Tensor, torch.Tensor | None] | None:
        """Log-probs [tokens] of `targets` and entropies, in float32; None where the kernel is not to be had. chunks:
        the same of hidden states and weight without it, for a backward pass that it refuses."""
        if self._is_missing:
            return None

        def compute(hidden: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
            from liger_kernel.ops.fused_linear_scaled_cross_entropy import LigerFusedLinearScaledCrossEntropyFunction

            os.environ.setdefault(CHECKS_TARGETS, "0")
            made = LigerFusedLinearScaledCrossEntropyFunction.apply(
                hidden, weight, targets, temperature, NO_TARGET, 1, with_entropy
            )
            return (-made[0], made[1].float()) if with_entropy else (-made,)

        try:
            if torch.is_grad_enabled():
                made = _Refusable.apply(hidden, weight, compute, chunks, self._give_up)
            else:
                made = compute(hidden.detach(), weight.detach())  # keeps nothing for gradients
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # of the package, of its compiler or of the driver: chunks do without all of them
            self._give_up(error)
            return None
        return made[0], made[1] if with_entropy else None

    def _give_up(self, error: Exception) -> None:
        self._is_missing = True
        log.warning("the last layer is computed in chunks of logits: Liger's fused kernel is not there (%s)", error)


class _Refusable(torch.autograd.Function):  # type: ignore[misc]
    """A kernel that may refuse its backward pass, too: then chunks compute the gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        kernel: InChunks,
        chunks: InChunks,
        give_up: Callable[[Exception], None],
    ) -> tuple[torch.Tensor, ...]:
        leaves = [
            item.detach().requires_grad_(is_needed)
            for item, is_needed in zip((hidden, weight), ctx.needs_input_grad, strict=False)
        ]
        with torch.enable_grad():
            made = kernel(*leaves)
        ctx.leaves, ctx.made, ctx.chunks, ctx.give_up = leaves, made, chunks, give_up
        return tuple(item.detach() for item in made)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        leaves, made = ctx.leaves, ctx.made
        ctx.leaves, ctx.made = [], ()  # a backward pass is made once
        try:
            result = _gradients(made, leaves, gradients)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            ctx.give_up(error)
            with torch.enable_grad():
                made = ctx.chunks(*leaves)
            result = _gradients(made, leaves, gradients)
        return (*result, None, None, None)


def _gradients(
    made: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]
) -> list[torch.Tensor | None]:
    """Those of the leaves, None where one needs none. Entropies that are only looked at have none to give."""
    needed = [leaf for leaf in leaves if leaf.requires_grad]
    outputs = [(item, gradient) for item, gradient in zip(made, gradients, strict=True) if item.requires_grad]
    computed = iter(torch.autograd.grad([item for item, _ in outputs], needed, [gradient for _, gradient in outputs]))
    return [next(computed) if leaf.requires_grad else None for leaf in leaves]


def suits(hidden: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether there is a kernel for a last layer without bias and cap. A job that is to be deterministic has none."""
    if hidden.device.type != "cuda" or torch.version.hip is not None or not len(hidden):
        return False
    is_bfloat16 = hidden.dtype == weight.dtype == torch.bfloat16
    is_hopper = torch.cuda.get_device_capability(hidden.device) == HOPPER
    return is_bfloat16 and is_hopper and not torch.are_deterministic_algorithms_enabled()


FUSED = FusedLastLayer()
"""This process's own."""
