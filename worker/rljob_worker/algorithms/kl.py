"""KL estimators: KL(π ‖ π_ref) from sampled tokens, the whole of it, and the controller of their coefficient.

With x = log π - log π_ref on tokens drawn from π. As a *value* K1, K2 and K3 are estimates of one number (K1 and
K3 unbiased, K2 biased, K3 never negative). As a *loss* they differ: on-policy the gradient of K1 has zero
mean, K2 has the gradient of the reverse KL, and K3 that of the forward KL unless it carries the ratio π /
π_old (K3Weighted). K1Straight and K3Straight have the gradient of K2, whatever their value.
https://arxiv.org/abs/2510.01555, https://arxiv.org/abs/2512.21852
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from .ratios import bounded_exp
from .registry import Registry

if TYPE_CHECKING:
    from .metric_accumulator import MetricAccumulator


class KLEstimator(Protocol):
    """A KL estimator as the catalogue and `module:function` know it; tensors are [tokens]."""

    def __call__(self, log_probs: Tensor, ref_log_probs: Tensor, old_log_probs: Tensor, /) -> Tensor: ...


KL_ESTIMATORS: Registry[KLEstimator] = Registry("KL estimator")


@KL_ESTIMATORS.register("K1")
def k1(log_probs: Tensor, ref_log_probs: Tensor, old_log_probs: Tensor) -> Tensor:
    """The log-ratio itself; the right one inside a reward.

    k1 = log π - log π_ref

    http://joschu.net/blog/kl-approx.html
    log_probs, ref_log_probs: [tokens]. old_log_probs: not read. Returns [tokens].
    """
    return log_probs - ref_log_probs


@KL_ESTIMATORS.register("AbsK1")
def abs_k1(log_probs: Tensor, ref_log_probs: Tensor, old_log_probs: Tensor) -> Tensor:
    """The magnitude of the log-ratio; biased, never negative, and of one slope at any distance.

    |k1| = |log π - log π_ref|

    http://joschu.net/blog/kl-approx.html
    log_probs, ref_log_probs: [tokens]. old_log_probs: not read. Returns [tokens].
    """
    return (log_probs - ref_log_probs).abs()


@KL_ESTIMATORS.register("K2")
def k2(log_probs: Tensor, ref_log_probs: Tensor, old_log_probs: Tensor) -> Tensor:
    """Half the squared log-ratio; as an on-policy loss it has the gradient of the reverse KL.

    k2 = ½ · (log π - log π_ref)²

    http://joschu.net/blog/kl-approx.html
    log_probs, ref_log_probs: [tokens]. old_log_probs: not read. Returns [tokens].
    """
    return 0.5 * (log_probs - ref_log_probs).square()


@KL_ESTIMATORS.register("K3")
def k3(log_probs: Tensor, ref_log_probs: Tensor, old_log_probs: Tensor) -> Tensor:
    """The estimate that is never negative and varies little, as in GRPO.

    k3 = r - 1 - log r,   r = π_ref / π

    http://joschu.net/blog/kl-approx.html, https://arxiv.org/abs/2402.03300
    log_probs, ref_log_probs: [tokens]. old_log_probs: not read.
    Returns [tokens]; above log r = 20 the exponential goes on as its tangent, so the gradient neither
    overflows nor vanishes.
    """
    log_r = ref_log_probs - log_probs
    # expm1 keeps the digits that exp(x) - 1 loses near 0
    return torch.where(log_r < 1.0, torch.expm1(log_r.clamp(max=1.0)), bounded_exp(log_r) - 1.0) - log_r


@KL_ESTIMATORS.register("K1Straight")
def k1_straight(log_probs: Tensor, ref_log_probs: Tensor, old_log_probs: Tensor) -> Tensor:
    """The value of K1 with the gradient of K2, which is that of the reverse KL on-policy.

    k2 + sg(k1 - k2)

    https://arxiv.org/abs/2510.01555
    log_probs, ref_log_probs: [tokens]. old_log_probs: not read. Returns [tokens].
    """
    return _straight(k1(log_probs, ref_log_probs, old_log_probs), k2(log_probs, ref_log_probs, old_log_probs))


@KL_ESTIMATORS.register("K3Straight")
def k3_straight(log_probs: Tensor, ref_log_probs: Tensor, old_log_probs: Tensor) -> Tensor:
    """The value of K3 with the gradient of K2, which is that of the reverse KL on-policy.

    k2 + sg(k3 - k2)

    https://arxiv.org/abs/2510.01555
    log_probs, ref_log_probs: [tokens]. old_log_probs: not read. Returns [tokens].
    """
    return _straight(k3(log_probs, ref_log_probs, old_log_probs), k2(log_probs, ref_log_probs, old_log_probs))


@KL_ESTIMATORS.register("K3Weighted")
def k3_weighted(log_probs: Tensor, ref_log_probs: Tensor, old_log_probs: Tensor) -> Tensor:
    """K3 times the differentiable importance ratio: unbiased, also off-policy and in its gradient.

    ρ · (r - 1 - log r),   ρ = π / π_old,   r = π_ref / π

    https://arxiv.org/abs/2512.02556
    log_probs, ref_log_probs, old_log_probs: [tokens].
    Returns [tokens], with the exact gradient ρ · (log π - log π_ref) at every distance.
    """
    # The gradient of ρ · (r - 1 - log r) is ρ · log(π / π_ref): the two terms with r cancel. Left to autograd they
    # cancel in floating point, and from about log r = 15 on float32 keeps noise only.
    ratio = bounded_exp(log_probs - old_log_probs).detach()
    value = ratio * k3(log_probs, ref_log_probs, old_log_probs)
    return _straight(value, ratio * k2(log_probs, ref_log_probs, old_log_probs))


@KL_ESTIMATORS.register("Full")
def full(log_probs: Tensor, ref_log_probs: Tensor, old_log_probs: Tensor) -> Tensor:
    """The divergence itself, over the whole vocabulary: no sampling error in value or gradient.

    KL(π ‖ π_ref) = Σ_v π_v · (log π_v - log π_ref,v)

    https://arxiv.org/abs/2510.01555
    log_probs, ref_log_probs: [tokens, vocabulary], which only the engine has: in an update the objective asks it
    for the result, `TokenBatch.full_kl`. old_log_probs: not read. Returns [tokens].
    """
    return (log_probs.exp() * (log_probs - ref_log_probs)).sum(-1)


def _straight(value: Tensor, slope: Tensor) -> Tensor:
    """The value of one and the gradient of the other."""
    return value.detach() + (slope - slope.detach())


def k3_unclamped(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """K3 for reports: the plain formula, without bound and without gradient.

    k3 = r - 1 - log r,   r = π_ref / π

    http://joschu.net/blog/kl-approx.html
    log_probs, ref_log_probs: [tokens]. Returns [tokens].
    """
    log_r = (ref_log_probs - log_probs).detach()
    return torch.expm1(log_r) - log_r


def add_reference_kl_metrics(
    totals: MetricAccumulator, log_probs: Tensor, ref_log_probs: Tensor, num_trajectories: Tensor
) -> None:
    """Report `kl/reference` in nats per token and `kl/reference_row` in nats per trajectory.

    mean over tokens, and mean over trajectories of the sum over one, of `k3_unclamped`

    http://joschu.net/blog/kl-approx.html
    log_probs, ref_log_probs: [actions]. num_trajectories: those with an action, a scalar.
    """
    add_kl_metrics(totals, k3_unclamped(log_probs, ref_log_probs), num_trajectories)


def add_kl_metrics(totals: MetricAccumulator, kl: Tensor, num_trajectories: Tensor) -> None:
    """Report a divergence that is already computed. kl: [actions]."""
    totals.mean_of("kl/reference", kl)
    totals.mean("kl/reference_row", kl.sum(dtype=torch.float64), num_trajectories)


@dataclass(frozen=True)
class KLController:
    """The KL coefficient of a step; `update` returns that of the next step. Fixed without a target.

    β ← β · (1 + clip(kl / target - 1, -0.2, 0.2) · trajectories / horizon)

    Ziegler et al. 2019, https://arxiv.org/abs/1909.08593
    """

    coefficient: float
    target: float | None = None  # nats per trajectory
    horizon: float = 10_000.0  # trajectories

    def update(self, kl: float, num_trajectories: int) -> KLController:
        """After a step: its KL in nats per trajectory (metric `kl/reference_row`), its trajectories over all ranks. A
        KL that is not finite says nothing, and the coefficient stays."""
        if self.target is None or not math.isfinite(kl):
            return self
        error = min(max(kl / self.target - 1.0, -0.2), 0.2)
        return replace(self, coefficient=self.coefficient * (1.0 + error * num_trajectories / self.horizon))

    def state_dict(self) -> dict[str, float]:
        """What changes, for a checkpoint; target and horizon are the job's."""
        return {"coefficient": self.coefficient}

    def with_state(self, state: dict[str, float]) -> KLController:
        """The controller of this job as it stood at a checkpoint; a fixed one keeps the job's coefficient."""
        return self if self.target is None else replace(self, coefficient=float(state["coefficient"]))
