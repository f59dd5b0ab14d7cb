"""What an update works out over whole rows before an engine cuts them into micro-batches.

corrected   once per step: importance weights, rejected tokens and how far rollout and training log-probs are apart
prepared    once per mini-batch: what the loss must know of all its tokens
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rljob_worker.batch import Batch, Column
from rljob_worker.errors import InvalidJob
from rljob_worker.metrics.scalars import Scalar

from .advantages import Reduce, no_reduce
from .corrections import correct
from .masking import LOSS_MASK, action_positions, mask_column, row_of, scatter_actions, tensor_of
from .mismatch import ROLLOUT_LOG_PROBS, tally_mismatch
from .objectives import IMPORTANCE_WEIGHTS
from .policy_losses import POLICY_LOSSES, MiniBatchTokens, PreparedPolicyLoss
from .registry import resolve
from .tally import Tally

if TYPE_CHECKING:
    from rljob_api.v1alpha1.algorithm import AlgorithmSpec, LossSpec


def check_reads(batch: Batch, loss: LossSpec) -> None:
    """Raises InvalidJob where a loss of the user's own reads a column that is not one number per response token."""
    for name in loss.reads:
        if not batch[name].is_ragged:
            raise InvalidJob(
                f"the policy loss {loss.name} reads column {name!r}, which has one value per row; a loss reads one "
                "number per response token, so let a stage of your own spread it over the tokens"
            )


def corrected(batch: Batch, algorithm: AlgorithmSpec, reduce: Reduce = no_reduce) -> tuple[Batch, dict[str, Scalar]]:
    """A step's rows with `importance_weights` and a `loss_mask` without what was rejected; and `mismatch/*`.

    batch: this rank's rows; unchanged without a correction. Without `old_log_probs` and `rollout_log_probs`, which a
    correction has, there is nothing to say yet. Collective through `reduce`.
    """
    if "old_log_probs" not in batch or ROLLOUT_LOG_PROBS not in batch:
        return batch, {}
    mask = batch[mask_column(algorithm)]
    old, rollout, actions = (tensor_of(each) for each in (batch["old_log_probs"], batch[ROLLOUT_LOG_PROBS], mask))
    if algorithm.correction is None:
        tally, at = Tally(), action_positions(actions)
        tally_mismatch(tally, old[at], rollout[at])
        return batch, tally.scalars()
    found, metrics = correct(old, rollout, actions, row_of(mask), len(batch), algorithm.correction, reduce)
    columns = {IMPORTANCE_WEIGHTS: _column(found.weights, mask), LOSS_MASK: _column(found.keep.to(torch.uint8), mask)}
    return batch.with_columns(columns), metrics


def prepared(batch: Batch, algorithm: AlgorithmSpec, *, reduce: Reduce, seed: int) -> Batch:
    """A mini-batch with the columns that the loss prepares, 0 at observations; collective through `reduce`.

    batch: this rank's rows, possibly none, with `old_log_probs` and `advantages`; unchanged where the loss looks at one
    token at a time.
    """
    loss = resolve(POLICY_LOSSES, algorithm.loss.name)
    if not isinstance(loss, PreparedPolicyLoss):
        return batch
    mask = batch[LOSS_MASK if LOSS_MASK in batch else "response_mask"]
    assert mask.offsets is not None, "a mask is ragged"
    at, row = action_positions(tensor_of(mask)), row_of(mask)
    tokens = MiniBatchTokens(
        old_log_probs=tensor_of(batch["old_log_probs"]).double()[at],
        advantages=tensor_of(batch["advantages"]).double()[at],
        row_ids=torch.tensor(batch.row_ids)[row[at]],
        positions=at - torch.tensor(mask.offsets)[row[at]],
    )
    found = loss.prepare(tokens, algorithm.loss, reduce, seed)
    return batch.with_columns(
        {name: _column(scatter_actions(values, at, len(row)), mask) for name, values in found.items()}
    )


def _column(values: Tensor, like: Column) -> Column:
    array = values.numpy()
    return Column(array, like.offsets, array.dtype.name)
