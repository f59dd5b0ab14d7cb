"""One token per row from logits; a draw depends on (seed, row_id, turn, position) and the row's distribution only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from rljob_worker.batch import Indices
from rljob_worker.engines.log_probs.token_log_probs import at_targets, log_distribution
from rljob_worker.engines.rollout.requests import Sampling
from rljob_worker.random_bits import bits_at


def draw_numbers(turns: Indices, positions: Indices) -> Indices:
    """What a draw is called among those of its row: no two positions of no two turns have the same. A response has less
    than 2**32 positions."""
    return positions + (turns << 32)


def uniforms(streams: np.ndarray, draws: Indices) -> np.ndarray:
    """A float64 in [0, 1) per draw: 24 of the `random_bits`, so that float32 holds it exactly and never rounds up to 1.

    streams: `random_streams` of seed and row_id, [rows]. draws: `draw_numbers`, [rows].
    """
    return (bits_at(streams, draws) >> np.uint64(40)).astype(np.float64) * 2.0**-24


def sample(
    logits: torch.Tensor, sampling: Sampling, streams: np.ndarray, draws: Indices
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens int64 [rows] and their log-probs [rows], from logits [rows, vocabulary]. sampling: its seed is in the
    streams.

    The log-prob is under the whole distribution at the sampling temperature, whatever top-p, top-k and min-p leave to
    draw from.
    """
    log_probs = log_distribution(logits, sampling.temperature or 1.0)
    if sampling.temperature == 0:
        tokens = log_probs.argmax(-1)
    else:
        kept = keep_likely(log_probs.exp(), sampling.top_p, sampling.top_k, sampling.min_p)
        tokens = invert_cdf(kept, torch.from_numpy(uniforms(streams, draws)).to(kept.device, kept.dtype))
    return tokens, at_targets(log_probs, tokens)


def sample_each(
    logits: torch.Tensor, samplings: Sequence[Sampling], sampling_of: Indices, streams: np.ndarray, draws: Indices
) -> tuple[torch.Tensor, torch.Tensor]:
    """`sample` of rows that are drawn in different ways; sampling_of: [rows], which of the samplings is a row's."""
    if (sampling_of == sampling_of[0]).all():
        return sample(logits, samplings[sampling_of[0]], streams, draws)
    tokens = torch.empty(len(sampling_of), dtype=torch.int64, device=logits.device)
    log_probs = torch.empty(len(sampling_of), dtype=torch.promote_types(logits.dtype, torch.float32)).to(logits.device)
    for kind in np.unique(sampling_of).tolist():
        rows = np.flatnonzero(sampling_of == kind)
        at = torch.from_numpy(rows).to(logits.device)
        tokens[at], log_probs[at] = sample(logits[at], samplings[kind], streams[rows], draws[rows])
    return tokens, log_probs


def invert_cdf(probabilities: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    """The first token whose cumulative probability exceeds draw * total: probabilities need not sum to 1, and a token
    of probability 0 is never drawn. [0.5, 0, 0.5] with draw 0.5 gives token 2. Some token for what is not finite."""
    cumulative = probabilities.cumsum(-1)
    targets = draws.unsqueeze(-1) * cumulative[:, -1:]
    return torch.searchsorted(cumulative, targets, right=True).squeeze(-1).clamp_(max=cumulative.shape[-1] - 1)


def keep_likely(probabilities: torch.Tensor, top_p: float, top_k: int, min_p: float = 0.0) -> torch.Tensor:
    """Zero all but the `top_k` most likely tokens, then all but the smallest set of those that reaches `top_p` of the
    rest, then all that are less than `min_p` times as likely as the most likely one; that one always stays."""
    size = probabilities.shape[-1]
    if 0 < top_k < size:
        least = probabilities.topk(top_k, dim=-1).values[:, -1:]
        probabilities = torch.where(probabilities >= least, probabilities, 0.0)
    if top_p < 1.0:
        ordered, tokens = probabilities.sort(dim=-1, descending=True, stable=True)
        before = ordered.cumsum(-1) - ordered
        ordered = torch.where(before < top_p * ordered.sum(-1, keepdim=True), ordered, 0.0)
        probabilities = torch.zeros_like(probabilities).scatter_(-1, tokens, ordered)
    if min_p > 0.0:
        probabilities = torch.where(probabilities >= min_p * probabilities.amax(-1, keepdim=True), probabilities, 0.0)
    return probabilities
