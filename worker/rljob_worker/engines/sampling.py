"""One token per row from logits; the draw depends on (seed, row_id, position) and the row's own distribution only."""

from __future__ import annotations

import numpy as np
import torch

from rljob_worker.batch import Indices
from rljob_worker.engines.protocols import Sampling
from rljob_worker.engines.token_log_probs import at_targets, log_distribution

_GOLDEN = 0x9E3779B97F4A7C15
_UINT64 = (1 << 64) - 1


def uniforms(seed: int, row_ids: Indices, positions: Indices) -> np.ndarray:
    """A float64 in [0, 1) per (seed, row_id, position): splitmix64 over the three, 24 bits kept so that float32 holds
    it exactly and never rounds up to 1. Steele, Lea & Flood 2014, "Fast splittable pseudorandom number
    generators"."""
    state = np.uint64(_mix_int(seed & _UINT64))
    rows = _mix(state ^ row_ids.astype(np.uint64))
    return (_mix(rows ^ positions.astype(np.uint64)) >> np.uint64(40)).astype(np.float64) * 2.0**-24


def sample(
    logits: torch.Tensor, sampling: Sampling, row_ids: Indices, positions: Indices
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens int64 [rows] and their log-probs [rows], from logits [rows, vocabulary].

    The log-prob is under the whole distribution at the sampling temperature, whatever top-p and top-k leave to draw
    from.
    """
    log_probs = log_distribution(logits, sampling.temperature or 1.0)
    if sampling.temperature == 0:
        tokens = log_probs.argmax(-1)
    else:
        kept = keep_likely(log_probs.exp(), sampling.top_p, sampling.top_k)
        draws = uniforms(sampling.seed, row_ids, positions)
        tokens = invert_cdf(kept, torch.from_numpy(draws).to(kept.device, kept.dtype))
    return tokens, at_targets(log_probs, tokens)


def invert_cdf(probabilities: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    """The first token whose cumulative probability exceeds draw * total: probabilities need not sum to 1, and a token
    of probability 0 is never drawn. [0.5, 0, 0.5] with draw 0.5 gives token 2."""
    cumulative = probabilities.cumsum(-1)
    targets = draws.unsqueeze(-1) * cumulative[:, -1:]
    return torch.searchsorted(cumulative, targets, right=True).squeeze(-1)


def keep_likely(probabilities: torch.Tensor, top_p: float, top_k: int) -> torch.Tensor:
    """Zero all but the `top_k` most likely tokens, then all but the smallest set of those that reaches `top_p` of the
    whole; the most likely token always stays."""
    size = probabilities.shape[-1]
    if 0 < top_k < size:
        least = probabilities.topk(top_k, dim=-1).values[:, -1:]
        probabilities = torch.where(probabilities >= least, probabilities, 0.0)
    if top_p < 1.0:
        ordered, tokens = probabilities.sort(dim=-1, descending=True, stable=True)
        before = ordered.cumsum(-1) - ordered
        ordered = torch.where(before < top_p * ordered.sum(-1, keepdim=True), ordered, 0.0)
        probabilities = torch.zeros_like(probabilities).scatter_(-1, tokens, ordered)
    return probabilities


def _mix(state: np.ndarray) -> np.ndarray:
    """One splitmix64 output per uint64; arithmetic wraps."""
    z = state + np.uint64(_GOLDEN)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _mix_int(value: int) -> int:
    return int(_mix(np.array([value], np.uint64))[0])
