"""The last layer in one kernel, which writes no logits to the device's memory.

Liger's fused linear scaled cross-entropy, https://github.com/linkedin/Liger-Kernel: of a last layer without bias and
cap, in BFloat16, on Hopper. For other devices that package has chunks of logits, as `linear` has. Compared with those,
entropies have the digits of BFloat16, and so has what adds up gradients of the weight, over 1,024 tokens at a time.
"""

from __future__ import annotations

import logging
import os

import torch

log = logging.getLogger(__name__)

HOPPER = (9, 0)
NO_TARGET = -100
"""The target of a token that is left out; none is here."""
CHECKS_TARGETS = "LIGER_SCALED_CE_SM90_VALIDATE_TARGETS"
"""Whether the kernel looks at its targets first, for which the host waits."""


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
    ) -> tuple[torch.Tensor, torch.Tensor | None] | None:
        """Log-probs [tokens] of `targets` and entropies, in float32; None where the kernel is not to be had."""
        if self._is_missing:
            return None
        try:
            from liger_kernel.ops.fused_linear_scaled_cross_entropy import LigerFusedLinearScaledCrossEntropyFunction

            os.environ.setdefault(CHECKS_TARGETS, "0")
            made = LigerFusedLinearScaledCrossEntropyFunction.apply(
                hidden, weight, targets, temperature, NO_TARGET, 1, with_entropy
            )
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # of the package, of its compiler or of the driver: chunks do without all of them
            self._is_missing = True
            log.warning("the last layer is computed in chunks of logits: Liger's fused kernel is not there (%s)", error)
            return None
        return (-made[0], made[1].float()) if with_entropy else (-made, None)


def suits(hidden: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether there is a kernel for a last layer without bias and cap. A job that is to be deterministic has none."""
    if hidden.device.type != "cuda" or torch.version.hip is not None or not len(hidden):
        return False
    is_bfloat16 = hidden.dtype == weight.dtype == torch.bfloat16
    is_hopper = torch.cuda.get_device_capability(hidden.device) == HOPPER
    return is_bfloat16 and is_hopper and not torch.are_deterministic_algorithms_enabled()


FUSED = FusedLastLayer()
"""This process's own."""
