"""What an engine minimises: losses composed, aggregated and measured.

    1/N_policy · Σ w·L/d  +  β/N_kl · Σ KL/d  -  η/N_entropy · Σ H/d

Each term has its own denominator N, counted once per optimizer step over all micro-batches and ranks
(`counts`), so that the sum of what `__call__` returns over micro-batches and ranks is the objective itself,
however rows are split, and trajectories into rows. w are the importance weights of a correction, 1 without one. A row
that was drawn several times counts as often, in the sums and in N.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rljob_worker.batch.trajectories import TRAJECTORY_ID

from .aggregation import AGGREGATIONS, Aggregation, aggregate, numerator
from .denominators import ROW_WEIGHTS, TRAJECTORY_TOKENS, CountedRows, count_actions
from .kl import KL_ESTIMATORS, KLEstimator, add_kl_metrics, add_reference_kl_metrics, k3_unclamped
from .masking import LOSS_MASK, mask_column
from .metric_accumulator import Measured, MetricAccumulator
from .mismatch import ROLLOUT_LOG_PROBS, TOKEN_VERSIONS, TokenAges, add_age_metrics, add_mismatch_metrics
from .policy_losses import POLICY_LOSSES, PolicyLoss, PolicyTokens
from .registry import resolve
from .segments import run_of

if TYPE_CHECKING:
    from rljob_api.v1alpha1.algorithm import AlgorithmSpec, LossSpec
    from rljob_worker.batch import Batch
    from rljob_worker.engines.protocols import TokenBatch

IMPORTANCE_WEIGHTS = "importance_weights"


@dataclass(frozen=True)
class KLTerm:
    """The KL penalty inside the loss; without an estimator the divergence itself, which the engine computes."""

    estimator: KLEstimator | None
    coefficient: float


class PolicyObjective:
    """Policy loss, KL penalty and entropy bonus of one mini-batch.

    Without `old_log_probs` the current policy is the old one: the ratio is 1, with the gradient of log π. trajectories:
    columns of rows that are parts of trajectories; with `trajectory_id` among them a micro-batch has whole ones, and
    what the loss sees as a row is a trajectory.
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
        has_importance_weights: bool = False,
        has_row_weights: bool = False,
        trajectories: tuple[str, ...] = (),
        mask: str = "response_mask",
        reads: tuple[str, ...] = (),
    ) -> None:
        self._loss = loss
        self._options = options
        self._kl = kl
        self._reads = reads
        self.mask = mask
        self._tells_mismatch = False
        self._ages: TokenAges | None = None
        self._terms = {"policy": (1.0, aggregation)}
        if kl is not None:
            self._terms["kl"] = (kl.coefficient, aggregation)
        if entropy_coefficient != 0.0:
            self._terms["entropy"] = (-entropy_coefficient, aggregation)
        names = [mask, "advantages"]
        names += ["old_log_probs"] * has_old_log_probs
        names += ["ref_log_probs"] * (kl is not None and kl.estimator is not None)
        names += [IMPORTANCE_WEIGHTS] * has_importance_weights + [ROW_WEIGHTS] * has_row_weights
        names += trajectories
        self.columns: tuple[str, ...] = tuple(dict.fromkeys([*names, *reads]))
        full_kl = {"full_kl"} if kl is not None and kl.estimator is None else set()
        # a gradient through entropies that no term has doubles the work on the last layer
        entropy = "entropy" if "entropy" in self._terms else "entropy_figure"
        self.outputs: frozenset[str] = frozenset({"log_probs", entropy, *full_kl})

    def reporting_mismatch(self, ages: TokenAges | None = None) -> PolicyObjective:
        """This objective, also reporting `mismatch/*` of what the model says of the tokens: for the weights that the
        update begins with. ages: of tokens by their `token_versions`; metrics are by age, too, then."""
        reporting = copy(self)
        names = [*self.columns, ROLLOUT_LOG_PROBS] + [TOKEN_VERSIONS] * (ages is not None)
        reporting.columns = tuple(dict.fromkeys(names))
        reporting._tells_mismatch = True
        reporting._ages = ages
        return reporting

    def counts(self, batch: Batch) -> dict[str, float]:
        """This rank's denominators of one mini-batch, by term. batch: its rows, with `columns`."""
        return {
            name: count_actions(aggregation, batch, self.mask, self.columns)
            for name, (_, aggregation) in self._terms.items()
        }

    def __call__(self, tokens: TokenBatch, counts: dict[str, float]) -> tuple[Tensor, Measured]:
        """Part of the objective, a scalar, and metrics, of which nothing is known to the host yet. tokens: whole rows.
        counts: over all ranks."""
        at = tokens.actions
        rows = CountedRows.of(tokens.row.index_select(0, at), tokens.num_rows, tokens.columns)
        actions = self._actions(tokens, at, rows.row)
        outcome = self._loss(actions, self._options)
        by_term = self._by_term(tokens, at, actions, rows, outcome.losses)
        parts = [
            coefficient * aggregate(aggregation, by_term[name], rows.row, rows.lengths, counts[name])
            for name, (coefficient, aggregation) in self._terms.items()
        ]
        return torch.stack(parts).sum(), self._metrics(tokens, at, actions, rows, by_term["policy"], outcome.indicators)

    def _actions(self, tokens: TokenBatch, at: Tensor, row: Tensor) -> PolicyTokens:
        if TRAJECTORY_ID in self.columns:  # as many as rows at most: only the device knows how many there are
            row = run_of(tokens.columns[TRAJECTORY_ID])[row]
        log_probs = tokens.log_probs.index_select(0, at)
        has_old = "old_log_probs" in self.columns
        return PolicyTokens(
            log_probs=log_probs,
            old_log_probs=tokens.columns["old_log_probs"].index_select(0, at) if has_old else log_probs.detach(),
            advantages=tokens.columns["advantages"].index_select(0, at),
            row=row,
            num_rows=tokens.num_rows,
            columns={name: tokens.columns[name].index_select(0, at) for name in self._reads},
        )

    def _by_term(
        self, tokens: TokenBatch, at: Tensor, actions: PolicyTokens, rows: CountedRows, losses: Tensor
    ) -> dict[str, Tensor]:
        """What each term adds up, [actions]."""
        if IMPORTANCE_WEIGHTS in self.columns:
            losses = losses * tokens.columns[IMPORTANCE_WEIGHTS].index_select(0, at)
        by_term = {"policy": losses}
        if self._kl is not None:
            by_term["kl"] = self._divergence(tokens, at, actions, self._kl.estimator)
        if tokens.entropy is not None:
            by_term["entropy"] = tokens.entropy.index_select(0, at)
        if rows.weights is not None:
            times = rows.weights[rows.row]
            by_term = {name: values * times for name, values in by_term.items()}
        return by_term

    def _divergence(
        self, tokens: TokenBatch, at: Tensor, actions: PolicyTokens, estimator: KLEstimator | None
    ) -> Tensor:
        if estimator is None:
            assert tokens.full_kl is not None, "the engine was not asked for the divergence"
            return tokens.full_kl.index_select(0, at)
        ref_log_probs = tokens.columns["ref_log_probs"].index_select(0, at)
        return estimator(actions.log_probs, ref_log_probs, actions.old_log_probs)

    def _metrics(
        self,
        tokens: TokenBatch,
        at: Tensor,
        actions: PolicyTokens,
        rows: CountedRows,
        losses: Tensor,
        indicators: Mapping[str, Tensor],
    ) -> Measured:
        totals = MetricAccumulator()
        aggregation = self._terms["policy"][1]
        totals.mean("loss/policy", numerator(aggregation, losses, rows.row, rows.lengths), rows.count(aggregation))
        log_probs = actions.log_probs.detach()
        ratio = (log_probs - actions.old_log_probs).exp()
        totals.mean_of("kl/old", k3_unclamped(actions.old_log_probs, log_probs))
        totals.mean_of("policy/ratio", ratio)
        totals.maximum("policy/ratio_max", ratio)
        for name, indicator in indicators.items():
            totals.mean_of(f"policy/{name}", indicator)
        if tokens.entropy is not None:
            totals.mean_of("policy/entropy", tokens.entropy.index_select(0, at))
        if self._tells_mismatch:
            self._add_mismatch(totals, tokens, at, log_probs)
        if tokens.full_kl is not None:
            add_kl_metrics(totals, tokens.full_kl.detach().index_select(0, at), rows.num_trajectories)
        elif self._kl is not None:
            ref_log_probs = tokens.columns["ref_log_probs"].index_select(0, at)
            add_reference_kl_metrics(totals, log_probs, ref_log_probs, rows.num_trajectories)
        return totals.measured()

    def _add_mismatch(self, totals: MetricAccumulator, tokens: TokenBatch, at: Tensor, log_probs: Tensor) -> None:
        rollout_log_probs = tokens.columns[ROLLOUT_LOG_PROBS].index_select(0, at)
        add_mismatch_metrics(totals, log_probs, rollout_log_probs)
        if self._ages is not None:
            age = self._ages.of(tokens.columns[TOKEN_VERSIONS].index_select(0, at))
            add_age_metrics(totals, log_probs, rollout_log_probs, age, self._ages.oldest)


def policy_objective(
    algorithm: AlgorithmSpec,
    *,
    max_response_tokens: int,
    has_old_log_probs: bool,
    kl_coefficient: float | None = None,
    made: Collection[str] = (),
) -> PolicyObjective:
    """The policy objective of a job.

    has_old_log_probs: whether a stage writes them. kl_coefficient: the controller's; None means the job's.
    made: columns that the update itself made of the step's rows: `importance_weights` and `loss_mask` of a correction,
    those of trajectories where they may have several rows, and what the loss prepared.
    """
    kl = None
    if algorithm.kl.placement == "Loss" and algorithm.kl.coefficient > 0.0:
        beta = algorithm.kl.coefficient if kl_coefficient is None else kl_coefficient
        name = algorithm.kl.estimator
        kl = KLTerm(None if name == "Full" else resolve(KL_ESTIMATORS, name), beta)
    loss = algorithm.loss
    trajectories = tuple(name for name in (TRAJECTORY_TOKENS, TRAJECTORY_ID) if name in made)
    prepared = [name for name in made if name not in (IMPORTANCE_WEIGHTS, LOSS_MASK, *trajectories)]
    return PolicyObjective(
        resolve(POLICY_LOSSES, loss.name),
        loss,
        resolve(AGGREGATIONS, loss.aggregation)(float(max_response_tokens)),
        kl=kl,
        entropy_coefficient=loss.entropy_coefficient,
        has_old_log_probs=has_old_log_probs,
        has_importance_weights=IMPORTANCE_WEIGHTS in made,
        has_row_weights=algorithm.sampling.resampling is not None,
        trajectories=trajectories,
        mask=LOSS_MASK if LOSS_MASK in made else mask_column(algorithm),
        reads=tuple(dict.fromkeys([*loss.reads, *prepared])),
    )
