"""What an engine minimises: losses composed, aggregated and measured.

    policy    1/N_policy · Σ L/d  +  β/N_kl · Σ KL/d  -  η/N_entropy · Σ H/d
    value     1/N_value · Σ L

Each term has its own denominator N, counted once per optimizer step over all micro-batches and ranks
(`counts`), so that the sum of what `__call__` returns over micro-batches and ranks is the objective itself,
however rows are split.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rljob_worker import scalars
from rljob_worker.scalars import Scalar

from .aggregation import Aggregation, TokenMean, aggregate, numerator
from .kl import KLEstimator, k3_unclamped, tally_reference_kl
from .masking import action_positions, row_of, tensor_of
from .policy_losses import PolicyLoss, PolicyTokenLosses, PolicyTokens
from .registries import AGGREGATIONS, KL_ESTIMATORS, POLICY_LOSSES, VALUE_LOSSES, resolve
from .segments import segment_count
from .tally import Tally
from .value_losses import ValueLoss, ValueTokenLosses

if TYPE_CHECKING:
    from rljob_api.v1alpha1.algorithm import AlgorithmSpec, LossSpec
    from rljob_worker.batch import Batch
    from rljob_worker.engines.protocols import TokenBatch


@dataclass(frozen=True)
class KLTerm:
    """The KL penalty inside the loss."""

    estimator: KLEstimator
    coefficient: float


class PolicyObjective:
    """Policy loss, KL penalty and entropy bonus of one mini-batch.

    Without `old_log_probs` the current policy is the old one: the ratio is 1, with the gradient of log π.
    """

    def __init__(
        self,
        loss: PolicyLoss,
        options: LossSpec,
        aggregation: Aggregation,
        *,
        kl: KLTerm | None = None,
        entropy_coefficient: float = 0.0,
        has_old_log_probs: bool = True,
        mask: str = "response_mask",
        reads: tuple[str, ...] = (),
    ) -> None:
        self._loss = loss
        self._options = options
        self._kl = kl
        self._reads = reads
        self._mask = mask
        self._terms = {"policy": (1.0, aggregation)}
        if kl is not None:
            self._terms["kl"] = (kl.coefficient, aggregation)
        if entropy_coefficient != 0.0:
            self._terms["entropy"] = (-entropy_coefficient, aggregation)
        names = [mask, "advantages"]
        names += ["old_log_probs"] * has_old_log_probs
        names += ["ref_log_probs"] * (kl is not None)
        self.columns: tuple[str, ...] = tuple(dict.fromkeys([*names, *reads]))
        self.outputs: frozenset[str] = frozenset({"log_probs", "entropy"})

    def counts(self, batch: Batch) -> dict[str, float]:
        """This rank's denominators of one mini-batch, by term. batch: its rows, with `columns`."""
        action_row = row_of(batch[self._mask])[action_positions(tensor_of(batch[self._mask]))]
        return {
            name: float(aggregation.count(action_row, len(batch))) for name, (_, aggregation) in self._terms.items()
        }

    def __call__(self, tokens: TokenBatch, counts: dict[str, float]) -> tuple[Tensor, dict[str, Scalar]]:
        """Part of the objective, a scalar, and metrics. tokens: whole rows. counts: over all ranks."""
        at = action_positions(tokens.columns[self._mask])
        actions = self._actions(tokens, at)
        outcome = self._loss(actions, self._options)
        by_term = {"policy": outcome.losses}
        ref_log_probs = entropy = None
        if self._kl is not None:
            ref_log_probs = tokens.columns["ref_log_probs"].index_select(0, at)
            by_term["kl"] = self._kl.estimator(actions.log_probs, ref_log_probs, actions.old_log_probs)
        if tokens.entropy is not None:
            entropy = by_term["entropy"] = tokens.entropy.index_select(0, at)
        parts = [
            coefficient * aggregate(aggregation, by_term[name], actions.row, actions.num_rows, counts[name])
            for name, (coefficient, aggregation) in self._terms.items()
        ]
        return torch.stack(parts).sum(), self._metrics(actions, outcome, ref_log_probs, entropy)

    def _actions(self, tokens: TokenBatch, at: Tensor) -> PolicyTokens:
        log_probs = tokens.log_probs.index_select(0, at)
        has_old = "old_log_probs" in self.columns
        return PolicyTokens(
            log_probs=log_probs,
            old_log_probs=tokens.columns["old_log_probs"].index_select(0, at) if has_old else log_probs.detach(),
            advantages=tokens.columns["advantages"].index_select(0, at),
            row=tokens.row.index_select(0, at),
            num_rows=tokens.num_rows,
            columns={name: tokens.columns[name].index_select(0, at) for name in self._reads},
        )

    def _metrics(
        self,
        actions: PolicyTokens,
        outcome: PolicyTokenLosses,
        ref_log_probs: Tensor | None,
        entropy: Tensor | None,
    ) -> dict[str, Scalar]:
        tally = Tally()
        aggregation = self._terms["policy"][1]
        summed = numerator(aggregation, outcome.losses, actions.row, actions.num_rows)
        tally.mean("loss/policy", summed, aggregation.count(actions.row, actions.num_rows))
        log_probs = actions.log_probs.detach()
        tally.mean_of("kl/old", k3_unclamped(actions.old_log_probs, log_probs))
        tally.maximum("policy/ratio_max", (log_probs - actions.old_log_probs).exp())
        for name, indicator in outcome.indicators.items():
            tally.mean_of(f"policy/{name}", indicator)
        if entropy is not None:
            tally.mean_of("policy/entropy", entropy)
        if ref_log_probs is not None:
            tally_reference_kl(tally, log_probs, ref_log_probs, segment_count(actions.row, actions.num_rows))
        return tally.scalars()


class ValueObjective:
    """The critic's loss of one mini-batch: a mean over action tokens, however the policy aggregates."""

    def __init__(self, loss: ValueLoss, clip_value: float | None, *, mask: str = "response_mask") -> None:
        self.columns: tuple[str, ...] = (mask, "values", "returns")
        self.outputs: frozenset[str] = frozenset({"values"})
        self._mask = mask
        self._loss = loss
        self._clip_value = clip_value
        self._aggregation = TokenMean()

    def counts(self, batch: Batch) -> dict[str, float]:
        """This rank's denominator of one mini-batch. batch: its rows, with `columns`."""
        action_row = row_of(batch[self._mask])[action_positions(tensor_of(batch[self._mask]))]
        return {"value": float(self._aggregation.count(action_row, len(batch)))}

    def __call__(self, tokens: TokenBatch, counts: dict[str, float]) -> tuple[Tensor, dict[str, Scalar]]:
        """Part of the objective, a scalar, and metrics. tokens: whole rows. counts: over all ranks."""
        assert tokens.values is not None, "the engine was not asked for values"
        at = action_positions(tokens.columns[self._mask])
        values, returns = tokens.values.index_select(0, at), tokens.columns["returns"].index_select(0, at)
        outcome = self._loss(values, tokens.columns["values"].index_select(0, at), returns, self._clip_value)
        loss = aggregate(
            self._aggregation, outcome.losses, tokens.row.index_select(0, at), tokens.num_rows, counts["value"]
        )
        return loss, _value_metrics(values.detach(), returns, outcome)


def _value_metrics(values: Tensor, returns: Tensor, outcome: ValueTokenLosses) -> dict[str, Scalar]:
    tally = Tally()
    residuals = returns - values
    tally.mean_of("loss/value", outcome.losses)
    tally.mean_of("value/clip_fraction", outcome.clipped)
    tally.mean_of("value/residual", residuals)
    tally.mean_of("value/residual_square", residuals.double().square())
    tally.mean_of("value/return", returns)
    tally.mean_of("value/return_square", returns.double().square())
    return tally.scalars()


def with_explained_variance(metrics: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Merged metrics with `value/explained_variance` added where a critic reported its moments.

    1 - Var[R - V] / Var[R]

    1 is a perfect critic, 0 one no better than a constant; left out where returns do not vary.
    metrics: merged over micro-batches and ranks; a ratio of variances cannot be merged, so it comes last.
    """
    if "value/return" not in metrics:
        return dict(metrics)
    unexplained = metrics["value/residual_square"].value - metrics["value/residual"].value ** 2
    variance = metrics["value/return_square"].value - metrics["value/return"].value ** 2
    if not variance > 0.0 or not math.isfinite(unexplained):
        return dict(metrics)
    return {**metrics, "value/explained_variance": scalars.mean(1.0 - unexplained / variance)}


def policy_objective(
    algorithm: AlgorithmSpec,
    *,
    max_response_tokens: int,
    has_old_log_probs: bool,
    kl_coefficient: float | None = None,
) -> PolicyObjective:
    """The policy objective of a job.

    has_old_log_probs: whether a stage writes them. kl_coefficient: the controller's; None means the job's.
    """
    kl = None
    if algorithm.kl.placement == "Loss" and algorithm.kl.coefficient > 0.0:
        beta = algorithm.kl.coefficient if kl_coefficient is None else kl_coefficient
        kl = KLTerm(resolve(KL_ESTIMATORS, algorithm.kl.estimator), beta)
    return PolicyObjective(
        resolve(POLICY_LOSSES, algorithm.loss.name),
        algorithm.loss,
        resolve(AGGREGATIONS, algorithm.loss.aggregation)(float(max_response_tokens)),
        kl=kl,
        entropy_coefficient=algorithm.loss.entropy_coefficient,
        has_old_log_probs=has_old_log_probs,
        mask=_mask_column(algorithm),
        reads=POLICY_LOSSES.reads(algorithm.loss.name),
    )


def value_objective(algorithm: AlgorithmSpec) -> ValueObjective:
    """The critic's objective of a job that has one."""
    assert algorithm.critic is not None, f"{algorithm.name} has no critic"
    return ValueObjective(resolve(VALUE_LOSSES, "Clipped"), algorithm.critic.clip_value, mask=_mask_column(algorithm))


def _mask_column(algorithm: AlgorithmSpec) -> str:
    """The tokens that enter the loss: all actions, or those of rows that were not cut off."""
    return "loss_mask" if algorithm.mask_truncated else "response_mask"
