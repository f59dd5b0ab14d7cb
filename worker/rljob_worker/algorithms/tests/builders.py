"""Rows, a small differentiable policy, and micro-batches made of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from rljob_api.v1alpha1.algorithm import AlgorithmSpec
from rljob_worker.algorithms.masking import row_of_token, tensor_of
from rljob_worker.algorithms.metric_accumulator import read_all
from rljob_worker.batch import Batch, Column
from rljob_worker.metrics.scalars import Scalar

if TYPE_CHECKING:
    from rljob_worker.engines.protocols import Objective


def double(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def ints(*numbers: int) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int64)


def rows_of(lengths: Sequence[int]) -> Tensor:
    """Row of each token: rows_of([2, 0, 1]) is [0, 0, 2]."""
    return torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths, dtype=torch.int64))


def judged(objective: Objective, tokens: Packed, counts: dict[str, float]) -> tuple[Tensor, dict[str, Scalar]]:
    """The loss of one micro-batch, and its metrics as they are read."""
    loss, measured = objective(tokens, counts)
    return loss, read_all([measured])[0]


def algorithm(name: str = "GRPO", **fields: object) -> AlgorithmSpec:
    return AlgorithmSpec.model_validate({"name": name, **fields})


@dataclass(frozen=True)
class Packed:
    """A micro-batch as an engine packs it."""

    log_probs: Tensor
    row: Tensor
    num_rows: int
    columns: dict[str, Tensor] = field(default_factory=dict)
    entropy: Tensor | None = None
    values: Tensor | None = None
    full_kl: Tensor | None = None

    @property
    def actions(self) -> Tensor:
        mask = self.columns["loss_mask" if "loss_mask" in self.columns else "response_mask"]
        return mask.bool().nonzero().squeeze(1)


def ragged_batch(lengths: Sequence[int], seed: int = 0, *, masked_rows: Sequence[int] = ()) -> Batch:
    """Rows of random float64 numbers under every column name; about a quarter of the tokens are observations."""
    random = np.random.default_rng(seed)
    total = sum(lengths)
    mask = (random.random(total) > 0.25).astype(np.uint8)
    mask[np.isin(np.repeat(np.arange(len(lengths)), lengths), list(masked_rows))] = 0
    ragged = {
        "response_ids": random.integers(0, 7, total),
        "response_mask": mask,
        "advantages": random.normal(size=total),
        "old_log_probs": -random.exponential(size=total) - 0.7,
        "ref_log_probs": -random.exponential(size=total) - 0.7,
        "values": random.normal(size=total),
        "returns": random.normal(size=total),
    }
    columns = {name: Column.from_lengths(values, lengths) for name, values in ragged.items()}
    columns["rewards"] = Column.fixed(random.normal(size=len(lengths)))
    columns["truncated"] = Column.fixed(random.random(len(lengths)) > 0.7)
    columns["rollout_log_probs"] = Column.from_lengths(-random.exponential(size=total) - 0.7, lengths)
    row_ids = np.arange(len(lengths))
    return Batch.build(row_ids, row_ids // 4, columns)


class Policy(torch.nn.Module):
    """One row of logits per token id, shared by all tokens: enough for gradients that all tokens add to."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.logits = torch.nn.Parameter(torch.randn(7, 7, generator=generator, dtype=torch.float64))
        self.baseline = torch.nn.Parameter(torch.randn(7, generator=generator, dtype=torch.float64))

    def pack(self, batch: Batch, columns: Sequence[str]) -> Packed:
        ids, row = tensor_of(batch["response_ids"]), row_of_token(batch["response_ids"])
        log_p = torch.log_softmax(self.logits[(3 * ids + 1) % 7], -1)
        return Packed(
            log_probs=log_p.gather(1, ids[:, None]).squeeze(1),
            entropy=-(log_p.exp() * log_p).sum(1),
            values=self.baseline[ids],
            row=row,
            num_rows=len(batch),
            columns={name: tensor_of(batch[name]) for name in columns},
            full_kl=(log_p.exp() * (log_p + math.log(7))).sum(1),  # to the uniform distribution
        )

    def gradient(self) -> Tensor:
        """All gradients in one vector; a parameter the loss does not reach counts as 0."""
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters()]
        return torch.cat([part.flatten() for part in parts])
