"""What the advantage stage computes: rewards are shaped, penalised, compared and whitened, in this order.

rewards of trajectories  ->  + overlong penalty  ->  - KL penalty per token  ->  estimator  ->  whiten

Where several agents play, an estimator that compares the responses to a prompt compares what each agent has of its
trajectories, agent by agent; another one sees all tokens of a trajectory in the order of acting. Advantages of agents
are whitened apart.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rljob_api.catalogue.algorithms import ESTIMATORS
from rljob_worker.batch import Column
from rljob_worker.batch.trajectories import Trajectories
from rljob_worker.errors import BadData
from rljob_worker.finite import first_not_finite

from ..kl import KL_ESTIMATORS, add_reference_kl_metrics
from ..masking import row_of_token, tensor_of
from ..metric_accumulator import MetricAccumulator
from ..registry import resolve
from ..segments import segment_count, segment_sum
from .acting_order import OrderedTokens, agent_of_token
from .decisions import in_decisions, on_tokens
from .group import group_spread
from .overlong import soft_overlong_penalty
from .samples import ADVANTAGES, Advantages, Reduce, Samples, no_reduce
from .token_rewards import token_level_rewards
from .whitening import whiten

if TYPE_CHECKING:
    from rljob_api.v1alpha1.algorithm import AdvantageSpec, AlgorithmSpec
    from rljob_worker.batch import Batch
    from rljob_worker.metrics.scalars import Scalar


def has_reward_kl(algorithm: AlgorithmSpec) -> bool:
    """Whether the KL penalty is part of the rewards."""
    return algorithm.kl.placement == "Reward" and algorithm.kl.coefficient > 0.0


def estimate_advantages(
    batch: Batch,
    algorithm: AlgorithmSpec,
    *,
    max_response_tokens: int,
    kl_coefficient: float | None = None,
    rows_per_trajectory: int = 1,
    num_agents: int = 1,
    rewards_agents: bool = False,
    rows_are_decisions: bool = False,
    reduce: Reduce = no_reduce,
) -> tuple[Advantages, dict[str, Scalar]]:
    """Float32 advantages (and returns) of every response token of this rank's rows, and metrics.

    batch: `rewards` [rows], alike on all rows of a trajectory, `response_mask` ragged, `step_rewards` where some are
    spread, what the estimator reads (`values` for GAE), and with the KL in the reward `old_log_probs` and
    `ref_log_probs`. kl_coefficient: the controller's; None means the job's. num_agents: that have rows of their own in
    a trajectory, with `turn_ids` in the batch. rewards_agents: whether `rewards` are alike on the rows of an agent
    alone. rows_are_decisions: whether estimators count in rows, not in tokens. Collective through `reduce`. Raises
    BadData for an advantage that is not finite, and for a trajectory of which a row is missing.
    """
    totals = MetricAccumulator()
    trajectories = Trajectories(batch.row_ids, rows_per_trajectory, num_agents)
    rewarded = trajectories.of_agents if rewards_agents else trajectories
    rewarded.require_alike(batch["rewards"].values, "reward")
    if _compares_groups(algorithm.advantage):
        shaped = given = OrderedTokens.as_they_lie(batch, trajectories.of_agents)
    else:
        given = OrderedTokens.as_acted(batch, trajectories)
        shaped = OrderedTokens.as_they_lie(batch, rewarded) if rewards_agents else given
    samples = _samples(batch, shaped, given, algorithm, max_response_tokens, kl_coefficient, totals, num_agents)
    result = given.restore(_estimated(samples, batch if rows_are_decisions else None, algorithm.advantage, reduce))
    _require_finite(result.advantages, batch, algorithm.advantage)  # whitening would spread it over all rows
    if algorithm.advantage.whiten:
        mask, kinds = tensor_of(batch["response_mask"]).bool(), result.kinds
        if num_agents > 1:
            kinds = agent_of_token(batch["response_mask"], trajectories)
        result = replace(result, advantages=whiten(result.advantages, mask, reduce, kinds=kinds))
    returns = None if result.returns is None else result.returns.float()
    return Advantages(result.advantages.float(), returns), totals.scalars()


def _estimated(samples: Samples, decisions: Batch | None, advantage: AdvantageSpec, reduce: Reduce) -> Advantages:
    """What the estimator says of tokens, or of the rows of a batch, which are decisions."""
    estimate = resolve(ADVANTAGES, advantage.estimator)
    if decisions is None:
        return estimate(samples, advantage, reduce)
    decision = row_of_token(decisions["response_mask"])
    return on_tokens(estimate(in_decisions(samples, decision), advantage, reduce), samples.mask, decision)


def _compares_groups(advantage: AdvantageSpec) -> bool:
    own = ESTIMATORS.get(advantage.estimator)
    return own is not None and own.compares_groups


def _samples(
    batch: Batch,
    shaped: OrderedTokens,
    given: OrderedTokens,
    algorithm: AlgorithmSpec,
    max_response_tokens: int,
    kl_coefficient: float | None,
    totals: MetricAccumulator,
    num_agents: int,
) -> Samples:
    """What the estimator gets: tokens as `given`, of what is rewarded as `shaped`."""
    lying = tensor_of(batch["response_mask"]).bool()
    row, mask, first = shaped.row, shaped.take(lying), torch.tensor(shaped.trajectories.first)
    groups, number = _groups(batch, shaped.trajectories, num_agents), len(first)
    lengths = segment_count(row[mask], number)
    rewards = _shaped(tensor_of(batch["rewards"]).double()[first], lengths, algorithm, max_response_tokens, totals)
    if algorithm.group_size > 1:
        totals.mean_of("reward/zero_variance_groups", group_spread(rewards, groups) == 0.0)
    penalty = _kl_penalty(batch, algorithm, kl_coefficient, lying, lengths, totals)
    if penalty is not None:
        penalty = shaped.take(penalty)
    tokens = token_level_rewards(rewards, penalty, 1.0, row, mask, _steps(batch, shaped))
    rewards = rewards if penalty is None else rewards - segment_sum(penalty, row, number)
    first = torch.tensor(given.trajectories.first)
    if given is not shaped:
        of_agent = torch.tensor(given.trajectories.of_row)[torch.tensor(shaped.trajectories.first)]
        rewards, tokens = segment_sum(rewards, of_agent, len(first)), given.take(shaped.restored(tokens))
    return Samples(
        rewards=rewards,
        token_level_rewards=tokens,
        group_ids=_groups(batch, given.trajectories, num_agents),
        row=given.row,
        mask=given.take(lying),
        columns={name: _of_trajectories(batch[name], first, given) for name in _reads(algorithm.advantage)},
    )


def _groups(batch: Batch, trajectories: Trajectories, num_agents: int) -> Tensor:
    """Which trajectories are compared with each other, int64 [trajectories]: those of a prompt, and of one agent where
    agents have theirs apart."""
    groups, agents = batch.group_ids[trajectories.first], trajectories.row_ids[trajectories.first]
    if trajectories.num_agents == num_agents:
        return torch.tensor(groups)
    return torch.tensor(groups * num_agents + agents // trajectories.rows_per_trajectory % num_agents)


def _of_trajectories(column: Column, first: Tensor, tokens: OrderedTokens) -> Tensor:
    """[tokens] of a ragged column; [trajectories] of another, where the first row says what all of them do."""
    values = tensor_of(column)
    return tokens.take(values) if column.is_ragged else values[first]


def _require_finite(advantages: Tensor, batch: Batch, options: AdvantageSpec) -> None:
    of_tokens = Column.from_lengths(advantages.float().numpy(), batch["response_mask"].lengths)
    if result := first_not_finite(of_tokens, batch.row_ids):
        where, advantage = result
        raise BadData(
            f"the estimator {options.estimator} gives {where} the advantage {advantage}; look at it and at the columns "
            "that it reads"
        )


def _steps(batch: Batch, tokens: OrderedTokens) -> Tensor | None:
    """What of the rewards is at steps, float64 [tokens]; None where the job spreads none."""
    return tokens.take(tensor_of(batch["step_rewards"]).double()) if "step_rewards" in batch else None


def _reads(advantage: AdvantageSpec) -> tuple[str, ...]:
    """Columns of the estimator: the catalogue knows those of its own, the job declares those of the user's."""
    own = ESTIMATORS.get(advantage.estimator)
    return (() if own is None else own.reads) or advantage.reads


def _shaped(
    rewards: Tensor, lengths: Tensor, algorithm: AlgorithmSpec, max_response_tokens: int, totals: MetricAccumulator
) -> Tensor:
    """Rewards with the penalty for overlong responses, [trajectories]."""
    if algorithm.overlong is None:
        return rewards
    overlong = soft_overlong_penalty(
        lengths,
        max_response_tokens=max_response_tokens,
        buffer_tokens=algorithm.overlong.buffer_tokens,
        penalty=algorithm.overlong.penalty,
    )
    totals.mean_of("reward/overlong", overlong)
    return rewards + overlong


def _kl_penalty(
    batch: Batch,
    algorithm: AlgorithmSpec,
    coefficient: float | None,
    mask: Tensor,
    lengths: Tensor,
    totals: MetricAccumulator,
) -> Tensor | None:
    """β · kl at actions and 0 elsewhere, float64 [tokens]; None where the reward carries no KL."""
    if not has_reward_kl(algorithm):
        return None
    old, ref = tensor_of(batch["old_log_probs"]).double(), tensor_of(batch["ref_log_probs"]).double()
    add_reference_kl_metrics(totals, old[mask], ref[mask], (lengths > 0).sum())
    estimate = resolve(KL_ESTIMATORS, algorithm.kl.estimator)(old, ref, old)
    beta = algorithm.kl.coefficient if coefficient is None else coefficient
    return beta * torch.where(mask, estimate, 0.0)
