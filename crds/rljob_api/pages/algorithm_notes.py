"""What docs/algorithms.md says of the parts that are options and not functions of their own, each with an example."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rljob_api.catalogue import algorithms
from rljob_api.v1alpha1 import presets


@dataclass(frozen=True)
class Note:
    """One entry of a table."""

    name: str
    what: str
    formula: tuple[str, ...]
    papers: tuple[str, ...]
    example: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)


def example_of(algorithm: Mapping[str, Any], *, needs_agents: bool = False) -> dict[str, Any]:
    """A part of `spec` with this algorithm; with a stage that tells agents and turns apart where one is needed."""
    return {"algorithm": dict(algorithm), **(_AGENTS if needs_agents else {})}


_AGENTS = {
    "dag": {
        "stages": [
            {"name": "rollout", "run": "Rollout"},
            {"name": "reward", "run": "Reward", "after": ["rollout"]},
            {
                "name": "agents",
                "run": "my_agents:mark",
                "after": ["rollout"],
                "reads": ["response_ids"],
                "writes": ["agent_ids", "turn_ids"],
            },
            {"name": "reference", "run": "LogProbs", "models": ["reference"], "after": ["rollout"]},
            {"name": "values", "run": "Values", "after": ["rollout"]},
            {"name": "advantage", "run": "Advantage", "after": ["reward", "values", "agents"]},
            {"name": "update", "run": "UpdatePolicy", "after": ["advantage", "reference"]},
            {"name": "update_critic", "run": "UpdateCritic", "after": ["advantage"]},
        ]
    }
}


def _aggregation(name: str, formula: str, paper: str = "") -> Note:
    example = example_of({"name": "GRPO", "loss": {"aggregation": name}})
    return Note(name, algorithms.AGGREGATIONS[name], (formula,), (paper,) if paper else (), example)


AGGREGATIONS = (
    _aggregation("TokenMean", "Σ_t x_t / num_tokens", "https://arxiv.org/abs/2503.14476"),
    _aggregation("SequenceMeanTokenMean", "Σ_rows (Σ_t x_t / |row|) / num_rows", "https://arxiv.org/abs/2402.03300"),
    _aggregation("SequenceMeanTokenSum", "Σ_rows (Σ_t x_t) / num_rows"),
    _aggregation(
        "SequenceMeanTokenSumNorm",
        "Σ_rows (Σ_t x_t / maxResponseTokens) / num_rows",
        "https://arxiv.org/abs/2503.20783",
    ),
)

_TIS = "https://fengyao.notion.site/off-policy-rl"


def _correction(name: str, formula: str, paper: str) -> Note:
    options = presets.CORRECTION_OPTIONS[name]
    example = example_of({"name": "GRPO", "correction": {"method": name, **options}})
    return Note(name, algorithms.CORRECTIONS[name], (formula,), (paper,), example, options)


CORRECTIONS = (
    _correction("TruncatedImportance", "L ← sg(clip(w, lower, upper)) · L,   w = π_old / μ", _TIS),
    _correction("MaskedImportance", "L ← sg(w) · L where lower <= w <= upper, nothing elsewhere", _TIS),
    _correction("ICEPOP", "L ← sg(w) · [lower <= w <= upper] · L, token by token", "https://arxiv.org/abs/2510.18855"),
    _correction(
        "SequenceRejection", "rows with every lower <= w <= upper stay in the loss", "https://richardli.xyz/rl-collapse"
    ),
    Note(
        "decoupled PPO",
        "PPOClip near the weights that the update begins with, each token weighed by them against those that drew it; "
        "a token with w above the cap `upper` weighs nothing, or with TruncatedImportance the cap",
        ("L = -sg(w) · [w <= upper] · min(ρ·A, clip(ρ, 1 - clip_low, 1 + clip_high)·A),   w = π_old / μ",),
        ("https://arxiv.org/abs/2505.24298",),
        example_of({"name": "GRPO", "correction": {"method": "ICEPOP", "lower": 0.0, "upper": 5.0}}),
    ),
    Note(
        "correction.staleOnly",
        "with `rollout.maxStaleness`: tokens drawn with the newest weights are not corrected",
        ("w_t = 1 where the version of token t is the newest",),
        (),
        example_of({"name": "GRPO", "correction": {"method": "TruncatedImportance", "staleOnly": True}})
        | {
            "rollout": {"maxStaleness": 1},
            "workerGroups": [{"name": "train", "replicas": 2}, {"name": "rollout", "replicas": 4}],
        },
        {"staleOnly": False},
    ),
)

_DAPO, _PF_PPO = "https://arxiv.org/abs/2503.14476", "https://arxiv.org/abs/2409.06957"


def _resampling(weighting: str, formula: str) -> Note:
    options = {"weighting": weighting} | ({"power": 2.0} if weighting == "Power" else {})
    example = example_of({"name": "PPO", "sampling": {"resampling": {"method": "PFPPO", **options}}})
    what = "policy filtration: as many rows as there are, drawn anew by their rewards"
    return Note(f"PFPPO {weighting}", what, (formula,), (_PF_PPO,), example, options)


SAMPLING = (
    Note(
        "sampling.dynamic",
        "groups whose rewards are all equal are dropped, and further prompts drawn until the batch is full",
        ("keep a prompt if max r > min r",),
        (_DAPO,),
        example_of({"name": "GRPO", "sampling": {"dynamic": True, "maxRounds": 5}}),
        {"dynamic": False, "maxRounds": 10},
    ),
    Note(
        "sampling.oversampling",
        "more prompts per round than are missing, against further rounds",
        ("draw oversampling · (batchSize - prompts kept)",),
        (_DAPO,),
        example_of({"name": "DAPO", "sampling": {"oversampling": 1.5}}),
        {"oversampling": 1.0},
    ),
    _resampling("Power", "P(row) ∝ |r|^power"),
    _resampling("MaxMin", "P(row) ∝ [r is the largest or the smallest]"),
    _resampling("MaxRandom", "P(row) ∝ 0.4 where r is the largest, 0.1 elsewhere"),
    Note(
        "overlong",
        "a penalty that grows over the last tokens allowed",
        ("r ← r - penalty · clip((|y| - (maxResponseTokens - bufferTokens)) / bufferTokens, 0, 1)",),
        (_DAPO,),
        example_of({"name": "DAPO", "overlong": {"bufferTokens": 8, "penalty": 1.0}}),
        {"penalty": 1.0},
    ),
    Note(
        "maskTruncated",
        "rows cut off at maxResponseTokens stay in the baseline of their group and out of the loss",
        ("m_t · [the row is not truncated]",),
        (_DAPO,),
        example_of({"name": "GRPO", "maskTruncated": True}),
        {"maskTruncated": False},
    ),
    Note(
        "kl.target",
        "a coefficient that follows the divergence of the policy from the reference",
        ("β ← β · (1 + clip(kl / target - 1, -0.2, 0.2) · rows / horizon)",),
        ("https://arxiv.org/abs/1909.08593",),
        example_of({"name": "GRPO", "kl": {"coefficient": 0.001, "target": 0.5, "horizon": 10000}}),
        {"target": None, "horizon": 10000},
    ),
    Note(
        "critic",
        "the value model of GAE and MARFT, with a clipped loss",
        ("½ · max((V - R)², (V_old + clip(V - V_old, ±clipValue) - R)²)",),
        ("https://arxiv.org/abs/2005.12729",),
        example_of({"name": "PPO", "critic": {"learningRate": 1.0e-5, "clipValue": 0.2, "warmupSteps": 2}}),
        {"learningRate": 1.0e-5, "clipValue": 0.2, "warmupSteps": 0},
    ),
)

OWN_PARTS = (
    Note(
        "advantage.estimator",
        "your function gets rewards, groups, mask, and the columns it lists in reads",
        ("(samples, options, reduce) -> Advantages",),
        (),
        example_of(
            {
                "name": "GRPO",
                "advantage": {"estimator": "my_rules:median", "reads": ["truncated"], "options": {"scale": 2.0}},
            }
        ),
    ),
    Note(
        "loss.name",
        "your function gets log-probabilities, advantages, and the per-token columns it lists in reads",
        ("(tokens, options) -> PolicyTokenLosses",),
        (),
        example_of({"name": "GRPO", "loss": {"name": "my_rules:softer", "options": {"margin": 0.1}}}),
    ),
    Note(
        "kl.estimator",
        "your function gets three log-probabilities of each token",
        ("(log_probs, ref_log_probs, old_log_probs) -> [tokens]",),
        (),
        example_of({"name": "GRPO", "kl": {"estimator": "my_rules:jensen", "coefficient": 0.01}}),
    ),
    Note(
        "loss.aggregation",
        "your function makes the divisors of tokens and the denominator",
        ("(max_response_tokens) -> Aggregation",),
        (),
        example_of({"name": "GRPO", "loss": {"aggregation": "my_rules:by_prompt"}}),
    ),
)
