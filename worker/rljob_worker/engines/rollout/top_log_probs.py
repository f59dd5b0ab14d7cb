"""The most likely tokens beside each sampled one, for callers that ask for them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from rljob_worker.batch import Indices
from rljob_worker.engines.log_probs.token_log_probs import log_distribution
from rljob_worker.engines.rollout.requests import Sampling, TopLogProbs


def top_of_each(
    logits: torch.Tensor, samplings: Sequence[Sampling], sampling_of: Indices, numbers: Indices
) -> tuple[torch.Tensor, torch.Tensor]:
    """The most likely tokens, int64 [rows, most], and their log-probs [rows, most], most likely first, from logits
    [rows, vocabulary]. sampling_of: [rows], which of the samplings is a row's. numbers: [rows], how many are asked for,
    one at least; most is the largest, or the vocabulary where that is smaller.

    As of the sampled token, a log-prob is under the whole distribution at the sampling temperature.
    """
    most = min(int(numbers.max()), logits.shape[-1])
    shape, device = (len(logits), most), logits.device
    tokens = torch.empty(shape, dtype=torch.int64, device=device)
    log_probs = torch.empty(shape, dtype=torch.promote_types(logits.dtype, torch.float32), device=device)
    temperatures = np.array([sampling.temperature or 1.0 for sampling in samplings])[sampling_of]
    for temperature in np.unique(temperatures).tolist():
        at = torch.from_numpy(np.flatnonzero(temperatures == temperature)).to(device)
        top = log_distribution(logits[at], temperature).topk(most, dim=-1)
        tokens[at], log_probs[at] = top.indices, top.values
    return tokens, log_probs


class GrowingTop:
    """`TopLogProbs` of a response while it is drawn, without the tokens that it brought."""

    def __init__(self, number: int) -> None:
        """number: of tokens at each position."""
        self.number = number
        self._tokens, self._log_probs = list[NDArray[np.int32]](), list[NDArray[np.float32]]()

    @staticmethod
    def of(sampling: Sampling) -> GrowingTop | None:
        """None where nobody asks."""
        return GrowingTop(sampling.top_log_probs) if sampling.top_log_probs else None

    def add(self, tokens: Sequence[int] | np.ndarray, log_probs: Sequence[float] | np.ndarray) -> None:
        """Those of the next token, of which there may be more than are asked for."""
        self._tokens.append(np.array(tokens[: self.number], np.int32))
        self._log_probs.append(np.array(log_probs[: self.number], np.float32))

    def whole(self) -> TopLogProbs:
        """What there is."""
        width = len(self._tokens[0]) if self._tokens else self.number
        shape = (len(self._tokens), width)
        tables = np.array(self._tokens, np.int32), np.array(self._log_probs, np.float32)
        return TopLogProbs(tables[0].reshape(shape), tables[1].reshape(shape))
