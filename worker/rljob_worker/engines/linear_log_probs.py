"""Log-probabilities straight from the last layer: logits [tokens, vocabulary] never exist for more than a chunk.

With z = cap(hidden W' + b) / temperature, of each chunk of tokens:

    log p(target) = z[target] - log sum exp(z)        H = -sum p log p

and the same again in the backward pass, which needs the logits once more. It costs one product more than keeping them,
and gives back 4 to 12 bytes per token and word of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F

from rljob_api.memory.training import LOGITS_ELEMENTS
from rljob_worker.engines.token_log_probs import at_targets, log_distribution, logit_gradient

CHUNK_ELEMENTS = LOGITS_ELEMENTS
"""Logits in memory at once: 64 MiB in float32, four times over in the backward pass."""

EntropyUse = Literal["None", "Figure", "Loss"]
"""Not computed, computed without a gradient, or with one."""


def linear_log_probs(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    targets: torch.Tensor,
    temperature: float,
    *,
    cap: float | None = None,
    entropy: EntropyUse = "None",
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Log-probs [tokens] of `targets` and the entropies [tokens], in float32, or float64 when the model is.

    hidden: [tokens, hidden]. weight: [vocabulary, hidden]. bias: [vocabulary]. cap: logits are c tanh(z / c).
    """
    log_probs, entropies = _LinearLogProbs.apply(hidden, weight, bias, targets, _Options(temperature, cap, entropy))
    return log_probs, entropies if entropy != "None" else None


@dataclass(frozen=True, slots=True)
class _Options:
    temperature: float
    cap: float | None
    entropy: EntropyUse


class _LinearLogProbs(torch.autograd.Function):
    """Chunks of tokens, each recomputed in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        options: _Options,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        log_probs, entropies = [], []
        for rows in _chunks(len(hidden), len(weight)):
            distribution = log_distribution(_logits(hidden[rows], weight, bias, options.cap), options.temperature)
            log_probs.append(at_targets(distribution, targets[rows]))
            if options.entropy != "None":
                entropies.append(-(distribution.exp() * distribution).sum(-1))
        entropy = torch.cat(entropies) if entropies else None
        ctx.save_for_backward(hidden, weight, bias, targets, entropy if options.entropy == "Loss" else None)
        ctx.options = options
        if options.entropy == "Figure":
            ctx.mark_non_differentiable(entropy)
        return torch.cat(log_probs), entropy

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, bias, targets, entropy = ctx.saved_tensors
        of_log_prob, of_entropy = gradients
        to_hidden, to_weight, to_bias, _, _ = ctx.needs_input_grad
        wide = torch.promote_types(weight.dtype, torch.float32)
        hidden_gradient = torch.empty_like(hidden) if to_hidden else None
        weight_gradient = torch.zeros_like(weight, dtype=wide) if to_weight else None
        bias_gradient = torch.zeros_like(bias, dtype=wide) if to_bias else None
        for rows in _chunks(len(hidden), len(weight)):
            logits = _logits(hidden[rows], weight, bias, ctx.options.cap)
            of_entropies = None if entropy is None else (of_entropy[rows], entropy[rows])
            pull = logit_gradient(logits, targets[rows], of_log_prob[rows], of_entropies, ctx.options.temperature)
            if ctx.options.cap is not None:  # a bounded logit l passes 1 - (l / cap)^2 on
                pull.mul_(1.0 - (logits.to(pull.dtype) / ctx.options.cap).square())
            if bias_gradient is not None:
                bias_gradient += pull.sum(0)
            pull = pull.to(weight.dtype)
            if hidden_gradient is not None:
                torch.matmul(pull, weight, out=hidden_gradient[rows])
            if weight_gradient is not None:
                _add_product(weight_gradient, pull, hidden[rows])
        return (
            hidden_gradient,
            None if weight_gradient is None else weight_gradient.to(weight.dtype),
            None if bias is None or bias_gradient is None else bias_gradient.to(bias.dtype),
            None,
            None,
        )


def _logits(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, cap: float | None) -> torch.Tensor:
    logits = F.linear(hidden, weight, bias)
    return logits if cap is None else torch.tanh(logits / cap) * cap


def _add_product(total: torch.Tensor, pull: torch.Tensor, hidden: torch.Tensor) -> None:
    """total += pull' hidden; products of fewer bits are added up in those of `total`."""
    if total.dtype == pull.dtype:
        total.addmm_(pull.t(), hidden)
    else:
        total += pull.t() @ hidden


def _chunks(num_tokens: int, vocabulary: int) -> Iterator[slice]:
    size = max(1, CHUNK_ELEMENTS // vocabulary)
    return (slice(start, start + size) for start in range(0, num_tokens, size))
