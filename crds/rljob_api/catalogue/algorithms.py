"""Every built-in part of an algorithm: what it is called, what it reads, which options it looks at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rljob_api.v1alpha1.presets import CRITIC_ESTIMATORS, PRESETS, Preset

BASELINE_REWARDS = "baseline_rewards"
"""The reward of the greedy response to a row's prompt, which Sample writes for ReMax."""


@dataclass(frozen=True)
class Estimator:
    """An advantage estimator of the catalogue."""

    name: str
    purpose: str
    options: tuple[str, ...]
    """Fields of `algorithm.advantage` that it looks at."""
    reads: tuple[str, ...] = ()
    """Columns besides rewards and mask."""
    min_group_size: int = 1
    """Fewer responses to a prompt tell it nothing."""
    looks_at_tokens: bool = False
    """Whether it tells rewards in the middle of a row from those at its end."""

    @property
    def compares_groups(self) -> bool:
        """Whether it compares the responses of one prompt."""
        return self.min_group_size > 1

    @property
    def has_critic(self) -> bool:
        """Whether it compares with the values of a critic."""
        return self.name in CRITIC_ESTIMATORS


@dataclass(frozen=True)
class LossFunction:
    """A policy loss of the catalogue."""

    name: str
    purpose: str
    options: tuple[str, ...] = ("clip_low", "clip_high")
    """Fields of `algorithm.loss` that it looks at, besides name, aggregation and entropyCoefficient."""
    is_sequence_level: bool = False
    """Whether it has one ratio per trajectory, so that only a mean over trajectories weighs them alike."""
    has_ratio: bool = True
    """Whether it compares with the policy from before the update."""
    reads: tuple[str, ...] = ()
    """Columns that it reads even where a step makes a single optimizer step."""


ALGORITHMS: Mapping[str, Preset] = PRESETS
"""Algorithms, by name."""

ESTIMATORS: Mapping[str, Estimator] = {
    estimator.name: estimator
    for estimator in (
        Estimator(
            "GAE", "rewards compared with a critic", ("gamma", "lambda_"), reads=("values",), looks_at_tokens=True
        ),
        Estimator("GRPO", "rewards compared within the group", ("normalize_std",), min_group_size=2),
        Estimator("RLOO", "rewards compared with the mean of the others in the group", (), min_group_size=2),
        Estimator("ReinforcePlusPlus", "discounted returns", ("gamma",), looks_at_tokens=True),
        Estimator("ReinforcePlusPlusBaseline", "rewards minus the mean of the group", (), min_group_size=2),
        Estimator(
            "ReMax",
            "rewards minus that of the greedy response",
            (),
            reads=(BASELINE_REWARDS,),
            looks_at_tokens=True,
        ),
        Estimator("OPO", "rewards minus the mean of the group weighted by length", (), min_group_size=2),
        Estimator("GRPOPassK", "the best of a group minus the second best", ("normalize_std",), min_group_size=2),
        Estimator("CPGD", "rewards compared within the group, weighted per prompt", ("weighting",), min_group_size=2),
        Estimator(
            "MARFT",
            "GAE along the tokens, agents and turns of a row",
            ("gamma", "lambda_"),
            reads=("values", "agent_ids", "turn_ids"),
            looks_at_tokens=True,
        ),
    )
}
"""Advantage estimators, by name."""

LOSSES: Mapping[str, LossFunction] = {
    loss.name: loss
    for loss in (
        LossFunction(
            "PPOClip",
            "clipped probability ratio, with separate bounds below and above",
            ("clip_low", "clip_high", "dual_clip", "ratio"),
        ),
        LossFunction("GSPO", "clipped ratio of whole rows", is_sequence_level=True),
        LossFunction("GSPOToken", "the value of GSPO, with a gradient per token", is_sequence_level=True),
        LossFunction(
            "CPGD",
            "clipped log-ratio, and a term against drift",
            ("clip_low", "clip_high", "drift_coefficient", "drift_clip"),
        ),
        LossFunction("CISPO", "log-probability weighted by the ratio, which is cut above and detached", ("clip_high",)),
        LossFunction("GPG", "log-probability weighted by the advantage", (), has_ratio=False),
        LossFunction("GMPO", "geometric mean of a row's clipped ratios", is_sequence_level=True),
        LossFunction(
            "ClipCov",
            "PPOClip, and no gradient for a few tokens of high covariance",
            ("clip_low", "clip_high", "covariance_fraction", "covariance_low", "covariance_high"),
            reads=("old_log_probs",),
        ),
        LossFunction(
            "KLCov",
            "ratio, with a penalty on the tokens of highest covariance",
            ("covariance_fraction", "kl_coefficient"),
            reads=("old_log_probs",),
        ),
        LossFunction("SAPO", "a smooth gate around ratio 1", ("temperature_positive", "temperature_negative")),
        LossFunction("DPPOTV", "ratio, within a bound on total variation", ("divergence_threshold",)),
        LossFunction("DPPOKL", "ratio, within a bound on the KL divergence", ("divergence_threshold",)),
        LossFunction("Reinforce", "log-probability weighted by the advantage: REINFORCE", (), has_ratio=False),
    )
}
"""Policy losses, by name."""


def needs_whole_trajectories(loss: str) -> bool:
    """Whether a policy loss has to see all rows of a trajectory at once: one with a ratio of them, and one that nobody
    here knows."""
    return loss not in LOSSES or LOSSES[loss].is_sequence_level


KL_ESTIMATORS: Mapping[str, str] = {
    "K1": "difference of log-probabilities; unbiased, high variance, and as a loss its gradient is 0 on average",
    "AbsK1": "its magnitude; biased, never negative",
    "K2": "half the squared difference; biased, its gradient is right",
    "K3": "exp(d) - d - 1 with d = reference - current; unbiased and never negative, its gradient is biased",
    "Full": "summed over the whole vocabulary; no sampling error, and the reference runs inside the update",
    "K1Straight": "the value of K1 with the gradient of K2",
    "K3Straight": "the value of K3 with the gradient of K2",
    "K3Weighted": "K3 times the importance ratio; value and gradient unbiased off policy too",
}
"""KL estimators, by name."""

AGGREGATIONS: Mapping[str, str] = {
    "TokenMean": "mean over all tokens of the mini-batch",
    "SequenceMeanTokenMean": "mean per row, then mean over rows",
    "SequenceMeanTokenSum": "sum per row, then mean over rows",
    "SequenceMeanTokenSumNorm": "sum per row, mean over rows, divided by maxResponseTokens",
}
"""Ways to turn token losses into one number, by name."""

CORRECTIONS: Mapping[str, str] = {
    "TruncatedImportance": "weighs by the ratio of training to rollout probabilities, cut to the bounds",
    "MaskedImportance": "weighs by it, and leaves out what lies outside the bounds",
    "ICEPOP": "weighs tokens by it, and gives none to those outside the bounds",
    "SequenceRejection": "leaves out rows outside the bounds, and weighs nothing",
}
"""Corrections between rollout and training log-probabilities, by method."""
