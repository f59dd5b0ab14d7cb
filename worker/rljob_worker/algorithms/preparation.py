"""What an update works out over whole rows before an engine cuts them into micro-batches.

corrected   once per step: importance weights, rejected tokens and how far rollout and training log-probs are apart
told_of_trajectories     once per step: what a row must know of the other rows of its trajectory
prepared    once per mini-batch: what the loss must know of all its tokens
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rljob_api.catalogue.algorithms import needs_whole_trajectories
from rljob_worker.batch import Batch, Column
from rljob_worker.batch.trajectories import TRAJECTORY_ID, Trajectories
from rljob_worker.errors import InvalidJob
from rljob_worker.metrics.scalars import Scalar

from .advantages import Reduce, no_reduce
from .corrections import correct
from .denominators import TRAJECTORY_TOKENS, trajectory_tokens
from .masking import LOSS_MASK, action_positions, mask_column, row_of_token, scatter_actions, tensor_of, trajectory_of
from .metric_accumulator import MetricAccumulator
from .mismatch import ROLLOUT_LOG_PROBS, TOKEN_VERSIONS, TokenAges, add_age_metrics, add_mismatch_metrics
from .objectives import IMPORTANCE_WEIGHTS
from .policy_losses import POLICY_LOSSES, MiniBatchTokens, PreparedPolicyLoss
from .registry import resolve
from .segments import segment_count

if TYPE_CHECKING:
    from rljob_api.v1alpha1.algorithm import AlgorithmSpec, LossSpec


def require_loss_columns(batch: Batch, loss: LossSpec) -> None:
    """Raises InvalidJob where a loss of the user's own reads a column that is not one number per response token."""
    for name in loss.reads:
        if not batch[name].is_ragged:
            raise InvalidJob(
                f"the policy loss {loss.name} reads column {name!r}, which has one value per row; a loss reads one "
                "number per response token, so let a stage of your own spread it over the tokens"
            )


def with_corrections(
    batch: Batch,
    algorithm: AlgorithmSpec,
    reduce: Reduce = no_reduce,
    *,
    rows_per_trajectory: int = 1,
    ages: TokenAges | None = None,
) -> tuple[Batch, dict[str, Scalar]]:
    """A step's rows with `importance_weights` and a `loss_mask` without what was rejected; and `mismatch/*`.

    batch: this rank's rows; unchanged without a correction. Without `old_log_probs` and `rollout_log_probs`, which a
    correction has, there is nothing to say yet. ages: of tokens by their `token_versions`, where those are a column;
    metrics are by age, too, then. Collective through `reduce`.
    """
    if "old_log_probs" not in batch or ROLLOUT_LOG_PROBS not in batch:
        return batch, {}
    mask = batch[mask_column(algorithm)]
    old, rollout, actions = (tensor_of(item) for item in (batch["old_log_probs"], batch[ROLLOUT_LOG_PROBS], mask))
    age = None if ages is None else ages.of(tensor_of(batch[TOKEN_VERSIONS]))
    totals, at = MetricAccumulator(), action_positions(actions)
    if ages is not None and age is not None:
        add_age_metrics(totals, old[at], rollout[at], age[at], ages.oldest)
    if algorithm.correction is None:
        add_mismatch_metrics(totals, old[at], rollout[at])
        return batch, totals.scalars()
    trajectories = Trajectories(batch.row_ids, rows_per_trajectory)
    trajectory = trajectory_of(mask, trajectories)
    spec, num_trajectories = algorithm.correction, len(trajectories)
    result, metrics = correct(old, rollout, actions, trajectory, num_trajectories, spec, reduce, age=age)
    columns = {IMPORTANCE_WEIGHTS: _column(result.weights, mask), LOSS_MASK: _column(result.keep.to(torch.uint8), mask)}
    return batch.with_columns(columns), totals.scalars() | metrics


def with_trajectory_columns(batch: Batch, algorithm: AlgorithmSpec, rows_per_trajectory: int) -> Batch:
    """A step's rows with `trajectory_tokens`, and with `trajectory_id` where the loss needs all rows of a trajectory in
    one micro-batch; unchanged where every trajectory has one row.

    batch: this rank's rows, with those of a trajectory all there. Raises BadData where one is missing.
    """
    if rows_per_trajectory == 1:
        return batch
    trajectories = Trajectories(batch.row_ids, rows_per_trajectory)
    mask = batch[LOSS_MASK if LOSS_MASK in batch else "response_mask"]
    of_row = torch.tensor(trajectories.of_row)
    num_tokens = trajectory_tokens(tensor_of(mask), trajectory_of(mask, trajectories), of_row)
    columns = {TRAJECTORY_TOKENS: Column.fixed(num_tokens.numpy())}
    if needs_whole_trajectories(algorithm.loss.name):
        columns[TRAJECTORY_ID] = Column.fixed(trajectories.ids)
    return batch.with_columns(columns)


def prepared(
    batch: Batch, algorithm: AlgorithmSpec, *, reduce: Reduce, seed: int, rows_per_trajectory: int = 1
) -> Batch:
    """A mini-batch with the columns that the loss prepares, 0 at observations; collective through `reduce`.

    batch: this rank's rows, possibly none, with `old_log_probs` and `advantages`; unchanged where the loss looks at one
    token at a time.
    """
    loss = resolve(POLICY_LOSSES, algorithm.loss.name)
    if not isinstance(loss, PreparedPolicyLoss):
        return batch
    mask = batch[LOSS_MASK if LOSS_MASK in batch else "response_mask"]
    assert mask.offsets is not None, "a mask is ragged"
    at, row = action_positions(tensor_of(mask)), row_of_token(mask)
    row_ids, positions = _places(batch, mask, at, row, rows_per_trajectory)
    tokens = MiniBatchTokens(
        old_log_probs=tensor_of(batch["old_log_probs"]).double()[at],
        advantages=tensor_of(batch["advantages"]).double()[at],
        row_ids=row_ids,
        positions=positions,
    )
    prepared = loss.prepare(tokens, algorithm.loss, reduce, seed)
    return batch.with_columns(
        {name: _column(scatter_actions(values, at, len(row)), mask) for name, values in prepared.items()}
    )


def _places(batch: Batch, mask: Column, at: Tensor, row: Tensor, rows_per_trajectory: int) -> tuple[Tensor, Tensor]:
    """The row_id of each action and its place in the response, [actions]; where a trajectory may have several rows, the
    row_id of its first and the number of actions before this one, which do not tell how it was cut."""
    if rows_per_trajectory == 1:
        return torch.tensor(batch.row_ids)[row[at]], at - torch.tensor(mask.offsets)[row[at]]
    trajectories = Trajectories(batch.row_ids, rows_per_trajectory)
    trajectory = trajectory_of(mask, trajectories)[at]
    before = segment_count(trajectory, len(trajectories)).cumsum(0)
    starts = torch.nn.functional.pad(before, (1, 0))
    return torch.tensor(batch.row_ids[trajectories.first])[trajectory], torch.arange(len(at)) - starts[trajectory]


def _column(values: Tensor, like: Column) -> Column:
    array = values.numpy()
    return Column(array, like.offsets, array.dtype.name)
