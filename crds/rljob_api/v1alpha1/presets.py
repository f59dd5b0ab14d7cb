"""What an algorithm's name stands for: the defaults of everything that is nested in `spec.algorithm`.

The types fill these in before they validate, so this module knows nothing of the types. A value lies where its
choice is made: bounds with the loss, whitening and the critic with the estimator, the combination with the algorithm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Options = Mapping[str, Any]
"""Values of the fields of one part, by Python name."""


@dataclass(frozen=True)
class Preset:
    """An algorithm: a combination of parts and the values that go with it."""

    name: str
    purpose: str
    paper: str
    estimator: str
    loss: str = "PPOClip"
    group_size: int = 8
    advantage: Options = field(default_factory=dict)
    """Differs from what the estimator brings along."""
    loss_options: Options = field(default_factory=dict)
    """Differs from what the loss brings along."""
    kl: Options = field(default_factory=dict)
    """Differs from `KL`."""
    sampling: Options = field(default_factory=dict)
    """Differs from `SAMPLING`."""
    rewards_progress: bool = False
    """Whether episodes are rewarded by their videos."""


KL: Options = {"estimator": "K3", "coefficient": 0.0, "placement": "Loss"}
SAMPLING: Options = {"dynamic": False}

ADVANTAGE: Options = {"normalize_std": True, "whiten": False}
LOSS: Options = {"clip_low": 0.2, "clip_high": 0.2, "aggregation": "TokenMean"}

ESTIMATOR_OPTIONS: Mapping[str, Options] = {
    "GAE": {"whiten": True},
    "MARFT": {"whiten": True},
    "ReinforcePlusPlus": {"whiten": True},
    "ReinforcePlusPlusBaseline": {"whiten": True},
}
"""Defaults that an estimator brings along, where they differ from `ADVANTAGE`."""

LOSS_OPTIONS: Mapping[str, Options] = {
    "GSPO": {"clip_low": 3e-4, "clip_high": 4e-4, "aggregation": "SequenceMeanTokenMean"},
    "GSPOToken": {"clip_low": 3e-4, "clip_high": 4e-4, "aggregation": "SequenceMeanTokenMean"},
    "CISPO": {"clip_high": 5.0},
    "GMPO": {"clip_low": 0.4, "clip_high": 0.4, "aggregation": "SequenceMeanTokenMean"},
    "SAPO": {"aggregation": "SequenceMeanTokenMean"},
    "DPPOTV": {"divergence_threshold": 0.15},
    "DPPOKL": {"divergence_threshold": 0.05},
}
"""Defaults that a loss brings along, where they differ from `LOSS`."""

CORRECTION_OPTIONS: Mapping[str, Options] = {
    "TruncatedImportance": {"level": "Token", "lower": 0.0, "upper": 2.0},
    "MaskedImportance": {"level": "Token", "lower": 0.5, "upper": 2.0},
    "ICEPOP": {"level": "Token", "lower": 0.5, "upper": 5.0},
    "SequenceRejection": {"level": "SequenceGeometric", "lower": 0.99, "upper": 1.01},
}
"""Defaults that a correction's method brings along."""

CRITIC_ESTIMATORS = frozenset({"GAE", "MARFT"})
"""Estimators that compare with the values of a critic."""

PRESETS: Mapping[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset(
            "GRPO",
            "compares the responses to one prompt with each other",
            "https://arxiv.org/abs/2402.03300",
            estimator="GRPO",
            kl={"coefficient": 0.001},
        ),
        Preset(
            "SRPO",
            "GRPO for episodes, in which failures count by how near they come to the batch's own successes",
            "https://arxiv.org/abs/2511.15605",
            estimator="GRPO",
            rewards_progress=True,
        ),
        Preset(
            "DrGRPO",
            "GRPO without the biases towards long rows and towards prompts whose rewards vary little",
            "https://arxiv.org/abs/2503.20783",
            estimator="GRPO",
            advantage={"normalize_std": False},
            loss_options={"aggregation": "SequenceMeanTokenSumNorm"},
        ),
        Preset(
            "DAPO",
            "GRPO with a higher upper bound, and batches without prompts that are always or never solved",
            "https://arxiv.org/abs/2503.14476",
            estimator="GRPO",
            loss_options={"clip_high": 0.28},
            sampling={"dynamic": True},
        ),
        Preset(
            "GSPO",
            "GRPO with one probability ratio per row",
            "https://arxiv.org/abs/2507.18071",
            estimator="GRPO",
            loss="GSPO",
        ),
        Preset(
            "GSPOToken",
            "GSPO for advantages that differ from token to token",
            "https://arxiv.org/abs/2507.18071",
            estimator="GRPO",
            loss="GSPOToken",
        ),
        Preset(
            "CPGD",
            "policy gradient with a clipped log-ratio, and a term that holds back drift from the old policy",
            "https://arxiv.org/abs/2505.12504",
            estimator="CPGD",
            loss="CPGD",
        ),
        Preset(
            "CISPO",
            "clips the importance weight and not the token, so that every token teaches",
            "https://arxiv.org/abs/2506.13585",
            estimator="GRPO",
            loss="CISPO",
        ),
        Preset(
            "GPG",
            "plain policy gradient on group-centred rewards: no ratio, no reference",
            "https://arxiv.org/abs/2504.02546",
            estimator="GRPO",
            loss="GPG",
            advantage={"normalize_std": False},
        ),
        Preset(
            "GMPO",
            "the geometric mean of a row's clipped ratios, which one outlier token moves little",
            "https://arxiv.org/abs/2507.20673",
            estimator="GRPO",
            loss="GMPO",
        ),
        Preset(
            "ClipCov",
            "keeps entropy: a few tokens of high covariance get no gradient",
            "https://arxiv.org/abs/2505.22617",
            estimator="GRPO",
            loss="ClipCov",
        ),
        Preset(
            "KLCov",
            "keeps entropy: the tokens of highest covariance get a penalty",
            "https://arxiv.org/abs/2505.22617",
            estimator="GRPO",
            loss="KLCov",
        ),
        Preset(
            "SAPO",
            "a smooth gate around ratio 1 in place of the clip",
            "https://arxiv.org/abs/2511.20347",
            estimator="GRPO",
            loss="SAPO",
        ),
        Preset(
            "DPPO",
            "bounds the divergence of a token's probability in place of its ratio",
            "https://arxiv.org/abs/2602.04879",
            estimator="GRPO",
            loss="DPPOTV",
        ),
        Preset(
            "RLOO",
            "each response is compared with the mean of the others",
            "https://arxiv.org/abs/2402.14740",
            estimator="RLOO",
            kl={"coefficient": 0.05, "estimator": "K1", "placement": "Reward"},
        ),
        Preset(
            "ReinforcePlusPlus",
            "whitened returns over the whole batch, without groups or critic",
            "https://arxiv.org/abs/2501.03262",
            estimator="ReinforcePlusPlus",
            group_size=1,
            kl={"coefficient": 0.01, "estimator": "K1", "placement": "Reward"},
        ),
        Preset(
            "ReinforcePlusPlusBaseline",
            "rewards minus the mean of their prompt, whitened over the whole batch",
            "https://arxiv.org/abs/2501.03262",
            estimator="ReinforcePlusPlusBaseline",
            kl={"coefficient": 0.01, "estimator": "K2"},
        ),
        Preset(
            "ReMax",
            "each response is compared with the greedy response to its prompt",
            "https://arxiv.org/abs/2310.10505",
            estimator="ReMax",
            loss="Reinforce",
            group_size=1,
            kl={"coefficient": 0.05, "estimator": "K1", "placement": "Reward"},
        ),
        Preset(
            "OPO",
            "on-policy gradient with the baseline of least variance, weighted by length",
            "https://arxiv.org/abs/2505.23585",
            estimator="OPO",
            loss="Reinforce",
        ),
        Preset(
            "GRPOPassK",
            "rewards the best of a group, for pass@k",
            "https://arxiv.org/abs/2503.19595",
            estimator="GRPOPassK",
        ),
        Preset(
            "Reinforce",
            "the policy gradient without a baseline",
            "https://doi.org/10.1007/BF00992696",
            estimator="ReinforcePlusPlus",
            loss="Reinforce",
            group_size=1,
            advantage={"whiten": False},
        ),
        Preset(
            "PPO",
            "compares each token with the value that a critic expects",
            "https://arxiv.org/abs/1707.06347",
            estimator="GAE",
            group_size=1,
            kl={"coefficient": 0.001},
        ),
        Preset(
            "MARFT",
            "PPO for several agents that take turns within a row",
            "https://arxiv.org/abs/2504.16129",
            estimator="MARFT",
            group_size=1,
            kl={"coefficient": 0.001},
        ),
    )
}
"""Every algorithm, by name."""


def advantage_defaults(preset: Preset, estimator: str) -> dict[str, Any]:
    """Defaults of `algorithm.advantage` once the estimator is known."""
    own = preset.advantage if estimator == preset.estimator else {}
    return {**ADVANTAGE, **ESTIMATOR_OPTIONS.get(estimator, {}), **own, "estimator": estimator}


def loss_defaults(preset: Preset, loss: str) -> dict[str, Any]:
    """Defaults of `algorithm.loss` once the loss is known."""
    own = preset.loss_options if loss == preset.loss else {}
    return {**LOSS, **LOSS_OPTIONS.get(loss, {}), **own, "name": loss}
