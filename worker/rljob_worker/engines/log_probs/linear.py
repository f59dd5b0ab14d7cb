"""Log-probabilities straight from the last layer: logits [tokens, vocabulary] never exist for more than a chunk.

With z = cap(hidden W' + b) / temperature, of each chunk of tokens:

    log p(target) = z[target] - log sum exp(z)        H = -sum p log p        KL = sum p (log p - log q)

and the same again in the backward pass, which needs the logits once more. It costs one product more than keeping them,
and gives back 4 to 12 bytes per token and word of the vocabulary. The logits of the last chunks are kept, of as many as
the four chunks have room for that the Plan counts: the backward pass begins with them, and frees each when it is done.

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
from rljob_worker.engines.log_probs.token_log_probs import (
    at_targets,
    entropy_of,
    log_distribution,
    logit_gradient,
)

CHUNK_ELEMENTS: int | None = None
"""Logits in memory at once, four times over while a model is trained; None: as many as the device has room for."""

KEPT_CHUNKS = 3
"""Chunks of logits that a backward pass finds, at most."""

_PARTS = 16
"""In which the entropies of a chunk are computed, so that they take next to no memory."""

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

    @property
    def tensors(self) -> tuple[torch.Tensor | None, ...]:
        return self.hidden, self.weight, self.bias

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
    is_trained = torch.is_grad_enabled() and any(item is not None and item.requires_grad for item in last.tensors)
    options = _Options(temperature, last.cap, entropy, reference, is_trained=is_trained)
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
    is_trained: bool

    def num_kept(self, dtype: torch.dtype) -> int:
        """Chunks whose logits, of this dtype, the backward pass finds. Beside them it has one more of the size of a
        chunk, two where logits are divided by a temperature or entropies have a gradient, and three where more is
        computed. Logits of two bytes are widened before they are divided: there are two of four bytes anyway."""
        if not self.is_trained:
            return 0
        if self.cap is not None or self.reference is not None:
            return 1
        has_one_more = dtype.itemsize > 2 and (self.temperature != 1.0 or self.entropy == "Loss")
        return KEPT_CHUNKS - 1 if has_one_more else KEPT_CHUNKS


class _LinearLogProbs(torch.autograd.Function):  # type: ignore[misc]
    """Chunks of tokens. Logits that are not kept are computed again in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        options: _Options,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        log_probs: list[torch.Tensor] = []
        entropies: list[torch.Tensor] = []
        kls: list[torch.Tensor] = []
        last, reference = LastLayer(hidden, weight, bias, options.cap), options.reference
        chunks = list(_chunks(len(hidden), len(weight), hidden.device))
        kept: dict[int, torch.Tensor] = {}
        for index, rows in enumerate(chunks):
            logits = last.logits(rows)
            if index >= len(chunks) - options.num_kept(logits.dtype):
                kept[index] = logits
            if reference is not None:
                kls.append(full_kl(logits, reference.logits(rows), options.temperature))
            distribution = log_distribution(logits, options.temperature)
            log_probs.append(at_targets(distribution, targets[rows]))
            if options.entropy != "None":
                entropies += [entropy_of(part) for part in distribution.split(-(-len(distribution) // _PARTS) or 1)]
            del logits, distribution  # before the next ones come
        entropy = torch.cat(entropies) if entropies else None
        kl = torch.cat(kls) if kls else None
        ctx.save_for_backward(hidden, weight, bias, targets, entropy if options.entropy == "Loss" else None, kl)
        ctx.options, ctx.kept = options, kept
        if options.entropy == "Figure":
            ctx.mark_non_differentiable(entropy)
        return torch.cat(log_probs), entropy, kl

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, bias, targets, entropy, kl = ctx.saved_tensors
        of_log_prob, of_entropy, of_kl = gradients
        reference, temperature = ctx.options.reference, ctx.options.temperature
        last = LastLayer(hidden, weight, bias, ctx.options.cap)
        to_hidden, to_weight, to_bias, _, _ = ctx.needs_input_grad
        wide = torch.promote_types(weight.dtype, torch.float32)
        hidden_gradient = torch.empty_like(hidden) if to_hidden else None
        weight_gradient = torch.zeros_like(weight, dtype=wide) if to_weight else None
        bias_gradient = torch.zeros_like(bias, dtype=wide) if to_bias else None
        chunks = list(enumerate(_chunks(len(hidden), len(weight), hidden.device)))
        for index, rows in reversed(chunks):  # those that are kept first
            logits = ctx.kept.pop(index) if index in ctx.kept else last.logits(rows)
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
            del logits, pull
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
