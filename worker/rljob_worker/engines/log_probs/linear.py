"""Log-probabilities straight from the last layer: logits [tokens, vocabulary] never exist for more than a chunk.

With z = cap(hidden W' + b) / temperature, of each chunk of tokens:

    log p(target) = z[target] - log sum exp(z)        H = -sum p log p        KL = sum p (log p - log q)

and the same again in the backward pass, which needs the logits once more. It costs one product more than keeping them,
and gives back 4 to 12 bytes per token and word of the vocabulary. The logits of a single chunk are kept: the backward
pass, which begins with them, has as many in memory anyway.

Where there is a kernel for it (see `fused`) log-probs and entropies come from that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import torch
import torch.nn.functional as F

from rljob_api.memory.sizes import logits_elements
from rljob_worker.devices.memory import total_memory
from rljob_worker.engines.log_probs.full_kl import full_kl, full_kl_gradient
from rljob_worker.engines.log_probs.fused import FUSED, suits
from rljob_worker.engines.log_probs.token_log_probs import at_targets, log_distribution, logit_gradient

CHUNK_ELEMENTS: int | None = None
"""Logits in memory at once, four times over in the backward pass; None: as many as the device has room for."""

EntropyUse = Literal["None", "Figure", "Loss"]
"""Not computed, computed without a gradient, or with one."""


@dataclass(frozen=True, slots=True)
class LastLayer:
    """What logits are made of."""

    hidden: torch.Tensor
    """[tokens, hidden]"""
    weight: torch.Tensor
    """[vocabulary, hidden]"""
    bias: torch.Tensor | None = None
    """[vocabulary]"""
    cap: float | None = None
    """Logits are c tanh(z / c)."""
    first_word: int = 0
    """The token of the first row of `weight`, where that has some words of the vocabulary only."""

    def logits(self, rows: slice) -> torch.Tensor:
        """[tokens, vocabulary] of some tokens."""
        logits = F.linear(self.hidden[rows], self.weight, self.bias)
        return logits if self.cap is None else torch.tanh(logits / self.cap) * self.cap


@dataclass(frozen=True, slots=True)
class LinearLogProbs:
    """Values for each token, in float32, or float64 when the model is; None is what was not asked for."""

    log_probs: torch.Tensor
    entropy: torch.Tensor | None = None
    full_kl: torch.Tensor | None = None


def linear_log_probs(
    last: LastLayer,
    targets: torch.Tensor,
    temperature: float,
    *,
    entropy: EntropyUse = "None",
    reference: LastLayer | None = None,
) -> LinearLogProbs:
    """Log-probs [tokens] of `targets`, entropies, and the divergence from the distributions of `reference`, which has
    no gradient."""
    own_targets = targets - last.first_word
    options = _Options(temperature, last.cap, entropy, reference)
    if last.bias is None and last.cap is None and reference is None and suits(last.hidden, last.weight):

        def in_chunks(hidden: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
            made = _LinearLogProbs.apply(hidden, weight, None, own_targets, options)
            return tuple(made[:1] if entropy == "None" else made[:2])

        with_entropy = entropy != "None"
        fused = FUSED.log_probs(
            last.hidden, last.weight, own_targets, temperature, with_entropy=with_entropy, chunks=in_chunks
        )
        if fused is not None:
            log_probs, entropies = fused
            if entropies is not None and entropy == "Figure":
                entropies = entropies.detach()
            return LinearLogProbs(log_probs, entropies)
    return LinearLogProbs(*_LinearLogProbs.apply(last.hidden, last.weight, last.bias, own_targets, options))


@dataclass(frozen=True, slots=True)
class _Options:
    temperature: float
    cap: float | None
    entropy: EntropyUse
    reference: LastLayer | None


class _LinearLogProbs(torch.autograd.Function):  # type: ignore[misc]
    """Chunks of tokens, each recomputed in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        options: _Options,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        log_probs, entropies, kls = [], [], []
        last, reference = LastLayer(hidden, weight, bias, options.cap), options.reference
        chunks = list(_chunks(len(hidden), len(weight), hidden.device))
        for rows in chunks:
            logits = last.logits(rows)
            if reference is not None:
                kls.append(full_kl(logits, reference.logits(rows), options.temperature))
            distribution = log_distribution(logits, options.temperature)
            log_probs.append(at_targets(distribution, targets[rows]))
            if options.entropy != "None":
                entropies.append(-(distribution.exp() * distribution).sum(-1))
        entropy = torch.cat(entropies) if entropies else None
        kl = torch.cat(kls) if kls else None
        kept = logits if len(chunks) == 1 else None
        ctx.save_for_backward(hidden, weight, bias, targets, entropy if options.entropy == "Loss" else None, kl, kept)
        ctx.options = options
        if options.entropy == "Figure":
            ctx.mark_non_differentiable(entropy)
        return torch.cat(log_probs), entropy, kl

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, bias, targets, entropy, kl, kept = ctx.saved_tensors
        of_log_prob, of_entropy, of_kl = gradients
        reference, temperature = ctx.options.reference, ctx.options.temperature
        last = LastLayer(hidden, weight, bias, ctx.options.cap)
        to_hidden, to_weight, to_bias, _, _ = ctx.needs_input_grad
        wide = torch.promote_types(weight.dtype, torch.float32)
        hidden_gradient = torch.empty_like(hidden) if to_hidden else None
        weight_gradient = torch.zeros_like(weight, dtype=wide) if to_weight else None
        bias_gradient = torch.zeros_like(bias, dtype=wide) if to_bias else None
        for rows in _chunks(len(hidden), len(weight), hidden.device):
            logits = last.logits(rows) if kept is None else kept
            of_entropies = None if entropy is None else (of_entropy[rows], entropy[rows])
            pull = logit_gradient(logits, targets[rows], of_log_prob[rows], of_entropies, temperature)
            if reference is not None:
                pull += full_kl_gradient(logits, reference.logits(rows), kl[rows], of_kl[rows], temperature)
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


def _add_product(total: torch.Tensor, pull: torch.Tensor, hidden: torch.Tensor) -> None:
    """total += pull' hidden; products of fewer bits are added up in those of `total`."""
    if total.dtype == pull.dtype:
        total.addmm_(pull.t(), hidden)
    else:
        total += pull.t() @ hidden


def _chunks(num_tokens: int, vocabulary: int, device: torch.device) -> Iterator[slice]:
    """At least one: a rank on which nothing is predicted has results too, empty ones."""
    size = max(1, (CHUNK_ELEMENTS or at_once(device)) // vocabulary)
    return (slice(start, start + size) for start in range(0, max(1, num_tokens), size))


@cache
def at_once(device: torch.device) -> int:
    """Logits in memory at once, as the Plan counts them."""
    return logits_elements(None if device.type == "cpu" else total_memory(device))
