"""Every built-in stage and algorithm: what it is called, what it reads and writes, what it needs.

CLI, operator and worker check a DAG against these same entries; a test compares them with the worker's registries.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from rljob_api.keys import ACTOR, CRITIC
from rljob_api.presets import CRITIC_ESTIMATORS, PRESETS, Preset
from rljob_api.v1alpha1 import RLJobSpec

Use = Literal["Generates", "Trains", "Scores", "None"]

USER_STAGE = re.compile(r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$")
"""How a user's own function is written: `module:function`."""

ROLLOUT_COLUMNS = (
    "prompt_ids",
    "response_ids",
    "response_mask",
    "rollout_log_probs",
    "policy_version",
    "truncated",
    "source",
)
"""What Rollout always writes.  What its plan writes besides are columns of the data, as text."""


BASELINE_REWARDS = "baseline_rewards"
"""The reward of the greedy response to a row's prompt, which Sample writes for ReMax."""

ROW_WEIGHTS = "row_weights"
"""How often PF-PPO's draw took a row, which Sample writes and a loss counts it."""


@dataclass(frozen=True)
class Columns:
    """What a stage reads and writes in one particular job."""

    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    """Read only when an upstream stage writes them."""


@dataclass(frozen=True)
class BuiltInStage:
    """A stage of the catalogue."""

    name: str
    purpose: str
    use: Use
    """What it does with its model: generates from it, trains it, only scores with it, or has none."""
    columns: Callable[[RLJobSpec, bool], Columns]
    """(spec, whether the job trains the stage's model) -> columns."""
    default_model: str | None = None
    needs_groups: bool = False
    can_balance: bool = True
    scatters_rows: bool = False
    """Whether its rows lie on whatever worker made them, and not where their numbers say."""

    @property
    def num_models(self) -> int:
        """How many models it takes."""
        return 0 if self.use == "None" else 1


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

    @property
    def compares_groups(self) -> bool:
        """Whether it compares the responses of one prompt."""
        return self.min_group_size > 1

    @property
    def has_critic(self) -> bool:
        """Whether it compares with the values of a critic."""
        return self.name in CRITIC_ESTIMATORS


@dataclass(frozen=True)
class Loss:
    """A policy loss of the catalogue."""

    name: str
    purpose: str
    options: tuple[str, ...] = ("clip_low", "clip_high")
    """Fields of `algorithm.loss` that it looks at, besides name, aggregation and entropyCoefficient."""
    is_sequence_level: bool = False
    """Whether it has one ratio per row, so that only a mean over rows weighs rows alike."""
    has_ratio: bool = True
    """Whether it compares with the policy from before the update."""
    reads: tuple[str, ...] = ()
    """Columns that it reads even where a step makes a single optimizer step."""


def data_columns(spec: RLJobSpec) -> tuple[str, ...]:
    """Columns of the data that are carried along: those that rewards need, and those a Rollout lists in `writes`."""
    for_rewards = [reward.column for reward in spec.rewards if reward.column is not None]
    stages = spec.dag.stages if spec.dag is not None else ()
    listed = [column for stage in stages if stage.run in ("Rollout", "Sample") for column in stage.writes]
    return tuple(column for column in dict.fromkeys(for_rewards + listed) if column not in ROLLOUT_COLUMNS)


def kl_in(spec: RLJobSpec, placement: Literal["Loss", "Reward"]) -> bool:
    """Whether the job has a KL penalty in this place."""
    return spec.algorithm.kl.coefficient > 0 and spec.algorithm.kl.placement == placement


def _rollout(spec: RLJobSpec, _trained: bool) -> Columns:
    return Columns(writes=ROLLOUT_COLUMNS + data_columns(spec))


def _reward(spec: RLJobSpec, _trained: bool) -> Columns:
    return Columns(reads=("prompt_ids", "response_ids", "source", *data_columns(spec)), writes=("rewards",))


def _sample(spec: RLJobSpec, _trained: bool) -> Columns:
    writes = [*ROLLOUT_COLUMNS, *data_columns(spec), "rewards"]
    writes += [BASELINE_REWARDS] * needs_baseline(spec) + [ROW_WEIGHTS] * resamples(spec)
    return Columns(writes=tuple(writes))


def _log_probs(_spec: RLJobSpec, trained: bool) -> Columns:
    return Columns(reads=_TOKENS, writes=("old_log_probs" if trained else "ref_log_probs",))


def _values(_spec: RLJobSpec, _trained: bool) -> Columns:
    return Columns(reads=_TOKENS, writes=("values",))


def needs_baseline(spec: RLJobSpec) -> bool:
    """Whether advantages need the reward of the greedy response to each prompt."""
    return BASELINE_REWARDS in estimator_reads(spec)


def needs_sample(spec: RLJobSpec) -> bool:
    """Whether generating and rewarding a step's rows takes more than doing each once."""
    return spec.algorithm.sampling.dynamic or resamples(spec) or needs_baseline(spec)


def resamples(spec: RLJobSpec) -> bool:
    """Whether the rows of a step are drawn anew by their rewards."""
    return spec.algorithm.sampling.resampling is not None


def estimator_reads(spec: RLJobSpec) -> tuple[str, ...]:
    """Columns that the job's estimator reads besides rewards and mask."""
    advantage = spec.algorithm.advantage
    known = ESTIMATORS.get(advantage.estimator)
    return known.reads if known is not None else advantage.reads


def loss_reads(spec: RLJobSpec) -> tuple[str, ...]:
    """Columns that the job's policy loss reads besides mask and advantages."""
    loss = spec.algorithm.loss
    return LOSSES[loss.name].reads if loss.name in LOSSES else loss.reads


def corrects(spec: RLJobSpec) -> bool:
    """Whether the difference between rollout and training log-probabilities is corrected."""
    return spec.algorithm.correction is not None


def compares_with_old(spec: RLJobSpec) -> bool:
    """Whether the update means something else by the policy from before it than the policy as it is."""
    algorithm = spec.algorithm
    entry = LOSSES.get(algorithm.loss.name)
    return entry is None or entry.has_ratio or (kl_in(spec, "Loss") and algorithm.kl.estimator == "K3Weighted")


def full_kl(spec: RLJobSpec) -> bool:
    """Whether the update computes the reference's distributions itself."""
    return spec.algorithm.kl.estimator == "Full" and spec.algorithm.kl.coefficient > 0


def _advantage(spec: RLJobSpec, _trained: bool) -> Columns:
    reads = ["rewards", "response_mask", *estimator_reads(spec)]
    reads += ["old_log_probs", "ref_log_probs"] * kl_in(spec, "Reward")
    reads += ["truncated"] * spec.algorithm.mask_truncated
    reads += ["values"] * (spec.algorithm.critic is not None)
    writes = ["advantages"] + ["returns"] * (spec.algorithm.critic is not None)
    writes += ["loss_mask"] * spec.algorithm.mask_truncated
    return Columns(reads=tuple(dict.fromkeys(reads)), writes=tuple(writes))


def _update_policy(spec: RLJobSpec, _trained: bool) -> Columns:
    reads = [*_TOKENS, "response_mask", "advantages", *loss_reads(spec)]
    reads += ["ref_log_probs"] * (kl_in(spec, "Loss") and not full_kl(spec))
    reads += ["loss_mask"] * spec.algorithm.mask_truncated + [ROW_WEIGHTS] * resamples(spec)
    reads += ["old_log_probs", "rollout_log_probs"] * corrects(spec)
    optional = () if corrects(spec) else ("old_log_probs",)
    return Columns(reads=tuple(dict.fromkeys(reads)), optional=optional)


def _update_critic(spec: RLJobSpec, _trained: bool) -> Columns:
    reads = [*_TOKENS, "response_mask", "values", "returns"]
    reads += ["loss_mask"] * spec.algorithm.mask_truncated + [ROW_WEIGHTS] * resamples(spec)
    return Columns(reads=tuple(reads))


_TOKENS = ("prompt_ids", "response_ids")

STAGES: Mapping[str, BuiltInStage] = {
    stage.name: stage
    for stage in (
        BuiltInStage(
            "Rollout",
            "takes the step's prompts and generates groupSize responses to each",
            "Generates",
            _rollout,
            default_model=ACTOR,
            can_balance=False,
        ),
        BuiltInStage(
            "Sample",
            "Rollout and Reward in rounds, until the step has the rows that `algorithm.sampling` asks for; for ReMax "
            "also the reward of each prompt's greedy response",
            "Generates",
            _sample,
            default_model=ACTOR,
            can_balance=False,
            scatters_rows=True,
        ),
        BuiltInStage("Reward", "calls the reward functions on every response", "None", _reward),
        BuiltInStage(
            "LogProbs",
            "log-probabilities of the responses: old ones of a model in training, reference ones of any other",
            "Scores",
            _log_probs,
        ),
        BuiltInStage("Values", "the critic's value of every token", "Scores", _values, default_model=CRITIC),
        BuiltInStage(
            "Advantage",
            "turns rewards into advantages, and into returns for a critic",
            "None",
            _advantage,
            needs_groups=True,
        ),
        BuiltInStage("UpdatePolicy", "optimizer steps on the policy", "Trains", _update_policy, default_model=ACTOR),
        BuiltInStage("UpdateCritic", "optimizer steps on the critic", "Trains", _update_critic, default_model=CRITIC),
    )
}

ALGORITHMS: Mapping[str, Preset] = PRESETS
"""Algorithms, by name."""

ESTIMATORS: Mapping[str, Estimator] = {
    estimator.name: estimator
    for estimator in (
        Estimator("GAE", "rewards compared with a critic", ("gamma", "lambda_"), reads=("values",)),
        Estimator("GRPO", "rewards compared within the group", ("normalize_std",), min_group_size=2),
        Estimator("RLOO", "rewards compared with the mean of the others in the group", (), min_group_size=2),
        Estimator("ReinforcePlusPlus", "discounted returns", ("gamma",)),
        Estimator("ReinforcePlusPlusBaseline", "rewards minus the mean of the group", (), min_group_size=2),
        Estimator("ReMax", "rewards minus that of the greedy response", (), reads=(BASELINE_REWARDS,)),
        Estimator("OPO", "rewards minus the mean of the group weighted by length", (), min_group_size=2),
        Estimator("GRPOPassK", "the best of a group minus the second best", ("normalize_std",), min_group_size=2),
        Estimator("CPGD", "rewards compared within the group, weighted per prompt", ("weighting",), min_group_size=2),
        Estimator(
            "MARFT",
            "GAE along the tokens, agents and turns of a row",
            ("gamma", "lambda_"),
            reads=("values", "agent_ids", "turn_ids"),
        ),
    )
}
"""Advantage estimators, by name."""

LOSSES: Mapping[str, Loss] = {
    loss.name: loss
    for loss in (
        Loss(
            "PPOClip",
            "clipped probability ratio, with separate bounds below and above",
            ("clip_low", "clip_high", "dual_clip"),
        ),
        Loss("GSPO", "clipped ratio of whole rows", is_sequence_level=True),
        Loss("GSPOToken", "the value of GSPO, with a gradient per token", is_sequence_level=True),
        Loss(
            "CPGD",
            "clipped log-ratio, and a term against drift",
            ("clip_low", "clip_high", "drift_coefficient", "drift_clip"),
        ),
        Loss("CISPO", "log-probability weighted by the ratio, which is cut above and detached", ("clip_high",)),
        Loss("GPG", "log-probability weighted by the advantage", (), has_ratio=False),
        Loss("GMPO", "geometric mean of a row's clipped ratios", is_sequence_level=True),
        Loss(
            "ClipCov",
            "PPOClip, and no gradient for a few tokens of high covariance",
            ("clip_low", "clip_high", "covariance_fraction", "covariance_low", "covariance_high"),
            reads=("old_log_probs",),
        ),
        Loss(
            "KLCov",
            "ratio, with a penalty on the tokens of highest covariance",
            ("covariance_fraction", "kl_coefficient"),
            reads=("old_log_probs",),
        ),
        Loss("SAPO", "a smooth gate around ratio 1", ("temperature_positive", "temperature_negative")),
        Loss("DPPOTV", "ratio, within a bound on total variation", ("divergence_threshold",)),
        Loss("DPPOKL", "ratio, within a bound on the KL divergence", ("divergence_threshold",)),
        Loss("Reinforce", "log-probability weighted by the advantage: REINFORCE", (), has_ratio=False),
    )
}
"""Policy losses, by name."""

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
