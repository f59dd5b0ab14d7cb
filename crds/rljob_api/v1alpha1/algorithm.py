"""The learning rule: estimator, loss, KL penalty, corrections, sampling, critic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator
from pydantic.alias_generators import to_camel

from rljob_api.v1alpha1 import presets
from rljob_api.vocabulary.model import ApiModel, Items

AlgorithmName = Literal[
    "GRPO",
    "SRPO",
    "DrGRPO",
    "DAPO",
    "GSPO",
    "GSPOToken",
    "CPGD",
    "CISPO",
    "GPG",
    "GMPO",
    "ClipCov",
    "KLCov",
    "SAPO",
    "DPPO",
    "RLOO",
    "ReinforcePlusPlus",
    "ReinforcePlusPlusBaseline",
    "ReMax",
    "OPO",
    "GRPOPassK",
    "Reinforce",
    "PPO",
    "MARFT",
]
CPGDWeighting = Literal["StandardDeviation", "ClipFilter", "Uniform"]
CorrectionMethod = Literal["TruncatedImportance", "MaskedImportance", "ICEPOP", "SequenceRejection"]
CorrectionLevel = Literal["Token", "Sequence", "SequenceGeometric"]


def _by_preset(value: Any, **constraints: Any) -> Any:
    """A field whose default depends on a name beside or above it; `value` holds where there is no such name.

    A factory keeps the default out of the JSON schema: an API server would fill in the wrong one.
    """
    return Field(default_factory=lambda: value, **constraints)


class AdvantageSpec(ApiModel):
    """How rewards become advantages."""

    estimator: str = _by_preset("GRPO", min_length=1)
    """An estimator of the catalogue, or the user's own as `module:function`. Unset: the algorithm's."""

    normalize_std: bool = _by_preset(True)
    """GRPO, GRPOPassK: whether advantages are divided by the standard deviation of their group. Unset: false
    for DrGRPO and GPG, true for others."""

    weighting: CPGDWeighting = "StandardDeviation"
    """CPGD: how a prompt's centred rewards are weighted: `StandardDeviation` divides by it, as GRPO does;
    `ClipFilter` makes up for prompts whose rewards are all equal; `Uniform` leaves them. Default
    StandardDeviation."""

    gamma: float = Field(default=1.0, ge=0, le=1)
    """GAE, MARFT, ReinforcePlusPlus: discount per token, and in jobs with a simulator per decision. Default 1.0."""

    lambda_: float = Field(default=1.0, ge=0, le=1, alias="lambda")
    """GAE, MARFT: the lambda of generalized advantage estimation, per token or decision as gamma. Default 1.0."""

    whiten: bool = _by_preset(False)
    """Whether advantages are brought to mean 0 and variance 1 over all response tokens of the batch. Unset:
    true for GAE, MARFT, ReinforcePlusPlus and ReinforcePlusPlusBaseline, false for others and for the
    algorithm Reinforce."""

    reads: Items[str] = Field(default=(), max_length=64)
    """Columns that your own estimator reads besides rewards, mask and groups; a per-token column is one
    number per response token."""

    options: dict[str, Any] = Field(default_factory=dict)
    """Options of your own estimator, which finds them in `options.options`."""


class LossSpec(ApiModel):
    """The policy loss."""

    name: str = _by_preset("PPOClip", min_length=1)
    """A loss of the catalogue, or the user's own as `module:function`. Unset: the algorithm's."""

    clip_low: float = _by_preset(0.2, ge=0, lt=1)
    """How far the probability ratio (for GMPO its logarithm) may fall below 1 (0) before it stops counting.
    Unset: 0.0003 for GSPO, 0.4 for GMPO, 0.2 for others."""

    clip_high: float = _by_preset(0.2, ge=0)
    """How far the probability ratio (for GMPO its logarithm) may rise above 1 (0) before it stops counting,
    at least clipLow. Unset: 0.28 for DAPO, 0.0004 for GSPO, 0.4 for GMPO, 5.0 for CISPO, 0.2 for others."""

    ratio: Literal["Token", "Decision"] = "Token"
    """PPOClip: what has one probability ratio, which is clipped: each action token, or in jobs with a simulator each
    `Decision`, by the product of the ratios of its tokens. Default Token."""

    dual_clip: float | None = None
    """PPOClip: bound on the loss of tokens with a negative advantage, as a factor above 1. Unset: no bound."""

    aggregation: str = _by_preset("TokenMean", min_length=1)
    """How token losses become one number: `TokenMean` over all tokens of the mini-batch;
    `SequenceMeanTokenMean` mean per row, then over rows; `SequenceMeanTokenSum` sum per row, then mean
    over rows; `SequenceMeanTokenSumNorm` the same divided by maxResponseTokens, as in Dr. GRPO; or the
    user's own as `module:function`. Unset: SequenceMeanTokenMean for GSPO, GMPO and SAPO,
    SequenceMeanTokenSumNorm for DrGRPO, TokenMean for others."""

    entropy_coefficient: float = 0.0
    """Weight of the entropy bonus. Default 0.0: none."""

    drift_coefficient: float = Field(default=0.001, ge=0)
    """CPGD: weight of the term that holds back drift from the old policy. Default 0.001."""

    drift_clip: float = Field(default=2.0, gt=0)
    """CPGD: bound on ratio - 1 in the gradient of the drift term. Default 2.0."""

    covariance_fraction: float = Field(default=0.0002, gt=0, le=1)
    """ClipCov, KLCov: share of a mini-batch's tokens that is held back. Default 0.0002."""

    covariance_low: float = 1.0
    """ClipCov: covariance above which a token may be chosen. Default 1.0."""

    covariance_high: float = 5.0
    """ClipCov: covariance below which a token may be chosen. Default 5.0."""

    kl_coefficient: float = Field(default=1.0, ge=0)
    """KLCov: weight of the penalty on the chosen tokens. Default 1.0."""

    temperature_positive: float = Field(default=1.0, gt=0)
    """SAPO: how steep the gate is for tokens with a positive advantage. Default 1.0."""

    temperature_negative: float = Field(default=1.05, gt=0)
    """SAPO: how steep the gate is for tokens with a negative advantage. Default 1.05."""

    divergence_threshold: float = _by_preset(0.15, gt=0)
    """DPPOTV, DPPOKL: divergence beyond which a token that moves further away stops counting. Unset: 0.15
    for DPPOTV, 0.05 for DPPOKL."""

    reads: Items[str] = Field(default=(), max_length=64)
    """Columns that your own loss reads, one number per response token."""

    options: dict[str, Any] = Field(default_factory=dict)
    """Options of your own loss, which finds them in `options.options`."""


class KLSpec(ApiModel):
    """The penalty that keeps the policy near the reference model."""

    estimator: str = _by_preset("K3", min_length=1)
    """How the divergence is estimated per token: `K1`, `AbsK1`, `K2`, `K3`; `Full` over the whole vocabulary;
    `K1Straight` and `K3Straight` with the value of K1 and K3 and the gradient of K2; `K3Weighted`, K3 times
    the importance ratio; or the user's own as `module:function`. Unset: K1 for RLOO, ReinforcePlusPlus and
    ReMax, K2 for ReinforcePlusPlusBaseline, K3 for others."""

    coefficient: float = _by_preset(0.001, ge=0)
    """Weight of the penalty. 0: no penalty, and no reference model is loaded. Unset: 0.001 for GRPO, PPO and
    MARFT, 0.01 for ReinforcePlusPlus and its baseline form, 0.05 for RLOO and ReMax, 0 for others."""

    placement: Literal["Loss", "Reward"] = _by_preset("Loss")
    """Whether the penalty is a term of the loss, or is subtracted from the token rewards. Unset: Reward for
    RLOO, ReinforcePlusPlus and ReMax, Loss for others."""

    target: float | None = Field(default=None, gt=0)
    """KL per row that an adaptive coefficient steers towards. Unset: the coefficient stays as it is."""

    horizon: int = Field(default=10000, ge=1)
    """Over how many rows the adaptive coefficient changes: more than a fifth of those of a step. Default 10000."""


class CorrectionSpec(ApiModel):
    """What is done about rows that another policy drew than the one that an update begins with.

    Its weights are older, as with rollout.maxStaleness, or the same in the rollout engine's arithmetic. With w the
    ratio of probabilities of a token or a row: by the policy that the update begins with, to the one that drew it.
    """

    method: CorrectionMethod
    """`TruncatedImportance` multiplies the loss by w, cut to [lower, upper]; `MaskedImportance` multiplies by
    w and leaves out what lies outside; `ICEPOP` gives tokens outside the weight 0, and counts them;
    `SequenceRejection` leaves out rows with a w outside, and weighs nothing. Decoupled PPO, as in AReaL, is the loss
    PPOClip with `ICEPOP`, lower 0 and its cap as upper, or with `TruncatedImportance` where the cap truncates."""

    level: CorrectionLevel = _by_preset("Token")
    """What w is the ratio of: `Token` by token; `Sequence` the product over a row; `SequenceGeometric` its
    geometric mean. Unset: SequenceGeometric for SequenceRejection, Token for others."""

    lower: float = _by_preset(0.0, ge=0)
    """Lower bound of w. Unset: 0 for TruncatedImportance, 0.5 for MaskedImportance and ICEPOP, 0.99 for
    SequenceRejection."""

    upper: float = _by_preset(2.0, gt=0)
    """Upper bound of w. Unset: 2.0 for TruncatedImportance and MaskedImportance, 5.0 for ICEPOP, 1.01 for
    SequenceRejection."""

    stale_only: bool = False
    """Whether only tokens drawn with older weights than the update begins with are corrected: others have the ratio 1,
    so that what differs by rounding alone is left as it is. For rollout.maxStaleness above 0, or rollout.partial.
    Default false."""

    @model_validator(mode="before")
    @classmethod
    def _fill_method_defaults(cls, given: Any) -> Any:
        return _filled(given, presets.CORRECTION_OPTIONS.get(_name_in(given, "method", ""), {}))


class ResamplingSpec(ApiModel):
    """Rows of a step drawn anew, with probabilities that follow their rewards."""

    method: Literal["PFPPO"]
    """`PFPPO`: policy filtration."""

    power: float = Field(default=2.0, gt=0)
    """The power of the reward's magnitude by which `Power` weighs. Default 2.0."""

    weighting: Literal["Power", "MaxMin", "MaxRandom"] = "Power"
    """What is drawn: `Power` by the magnitude of the reward; `MaxMin` the best and the worst; `MaxRandom` the
    best and any other. Default Power."""


class SuccessRangeSpec(ApiModel):
    """Between which parts something is."""

    low: float = Field(default=0.1, ge=0, le=1)
    """The least part. Default 0.1."""

    high: float = Field(default=0.9, ge=0, le=1)
    """The largest part. Default 0.9."""


class SamplingSpec(ApiModel):
    """Which rows a step learns from."""

    dynamic: bool = _by_preset(False)
    """Whether groups whose rewards are all equal are dropped and replaced by further prompts. Unset: true for
    DAPO, false for others."""

    success_range: SuccessRangeSpec | None = None
    """With dynamic: which part of a group's trajectories has to be right, by the first of `rewards`; groups outside are
    dropped and replaced, besides those whose rewards are all equal. Unset: any part."""

    max_rounds: int = Field(default=10, ge=1)
    """How many times a step may ask for further prompts before the job stops. Default 10."""

    oversampling: float = Field(default=1.0, ge=1)
    """Prompts per round, as a multiple of those still missing. What is too many is kept for the next step
    while it is from the current policy. Default 1.0."""

    resampling: ResamplingSpec | None = None
    """Rows drawn anew by their rewards. Unset: every row once."""


class CriticSpec(ApiModel):
    """The value model."""

    learning_rate: float = Field(default=1.0e-5, gt=0)
    """Peak learning rate of the critic. Default 1.0e-5."""

    clip_value: float = Field(default=0.2, gt=0)
    """How far a value may move from the one the advantages were made with before it stops counting.
    Default 0.2."""

    warmup_steps: int = Field(default=0, ge=0)
    """Steps in which only the critic learns. Default 0."""


class OverlongSpec(ApiModel):
    """The soft penalty for responses near the limit, as in DAPO."""

    buffer_tokens: int = Field(ge=1)
    """Length of the stretch before maxResponseTokens over which the penalty grows from 0, in tokens."""

    penalty: float = Field(default=1.0, gt=0)
    """What is subtracted from the reward of a response that is maxResponseTokens long. Default 1.0."""


class ProgressSpec(ApiModel):
    """SRPO: what episodes that failed are worth, by how near their videos come to those that succeeded."""

    form: Literal["MinMaxSigmoid", "Paper"] = "MinMaxSigmoid"
    """How a distance becomes a reward. `MinMaxSigmoid`: relative to the least and the largest of the task's failures in
    the batch, as siiRL. `Paper`: in standard deviations from their mean. Default MinMaxSigmoid."""

    scale: float = Field(default=0.6, gt=0, le=1)
    """What no failure's reward goes beyond. A success has 1. Default 0.6."""

    missing: Literal["PlainSuccess", "Zero"] = "PlainSuccess"
    """The reward of an episode whose video has no embedding: `PlainSuccess` 1 where it succeeded, else 0; `Zero` 0 in
    any case, as siiRL. Default PlainSuccess."""

    eps: float = Field(default=0.5, gt=0)
    """Successes at most this far apart are neighbours, in standard deviations of each dimension (DBSCAN). Default
    0.5."""

    min_samples: int = Field(default=2, ge=1)
    """Neighbours, itself among them, that begin a cluster. Default 2."""


class AlgorithmSpec(ApiModel):
    """The algorithm; what is unset has the algorithm's own default."""

    name: AlgorithmName
    """An algorithm of the catalogue: it sets the defaults of everything below, and anything below may be set
    otherwise."""

    group_size: int = _by_preset(8, ge=1, le=1024)
    """Responses per prompt. Unset: 1 for PPO, MARFT, ReinforcePlusPlus, ReMax and Reinforce, 8 for others."""

    update_epochs: int = Field(default=1, ge=1)
    """How often a step goes over its rows. Default 1."""

    advantage: AdvantageSpec = _by_preset(AdvantageSpec())
    """How rewards become advantages."""

    loss: LossSpec = _by_preset(LossSpec())
    """The policy loss."""

    kl: KLSpec = _by_preset(KLSpec())
    """The penalty that keeps the policy near the reference model."""

    correction: CorrectionSpec | None = None
    """What is done about rows of older weights, and about the difference between rollout and training
    log-probabilities. Unset: nothing."""

    sampling: SamplingSpec = _by_preset(SamplingSpec())
    """Which rows a step learns from."""

    critic: CriticSpec | None = None
    """The value model. Unset: its defaults with the estimators GAE and MARFT, none with others."""

    overlong: OverlongSpec | None = None
    """Soft penalty for responses near the limit. Unset: none."""

    mask_truncated: bool = False
    """Whether rows cut off at maxResponseTokens are left out of the loss. Default false."""

    progress: ProgressSpec | None = None
    """Rewards of episodes by their videos, in place of those of `rewards`; for rollout.simulator with a video encoder.
    Unset: its defaults for SRPO, none for others."""

    @model_validator(mode="before")
    @classmethod
    def _fill_algorithm_defaults(cls, given: Any) -> Any:
        """Put in the defaults that depend on the algorithm, and on the estimator and loss it is given."""
        preset = presets.PRESETS.get(_name_in(given, "name", ""))
        if preset is None:
            return given
        filled = _filled(given, {"group_size": preset.group_size})
        estimator = _name_in(given.get("advantage"), "estimator", preset.estimator)
        loss = _name_in(given.get("loss"), "name", preset.loss)
        nested = {
            "advantage": presets.advantage_defaults(preset, estimator),
            "loss": presets.loss_defaults(preset, loss),
            "kl": {**presets.KL, **preset.kl},
            "sampling": {**presets.SAMPLING, **preset.sampling},
        }
        for field, defaults in nested.items():
            filled[field] = _filled(given.get(field, {}), defaults)
        if estimator in presets.CRITIC_ESTIMATORS and given.get("critic") is None:
            filled["critic"] = {}
        if preset.rewards_progress and given.get("progress") is None:
            filled["progress"] = {}
        return filled


def _name_in(given: Any, field: str, default: str) -> str:
    """The name in a field of something that may not even be a mapping; anything else is left to validation."""
    name = given.get(field, default) if isinstance(given, dict) else getattr(given, field, default)
    return name if isinstance(name, str) else default


def _filled(given: Any, defaults: Mapping[str, Any]) -> Any:
    """`given` with defaults, which are named as in Python, for the fields that it does not have."""
    if not isinstance(given, dict):
        return given
    return {to_camel(name): value for name, value in defaults.items() if name not in given} | given
