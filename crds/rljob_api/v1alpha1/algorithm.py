"""The learning rule: estimator, loss, KL penalty, critic."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from rljob_api.model import ApiModel

AlgorithmName = Literal["GRPO", "PPO"]
Aggregation = Literal["TokenMean", "SequenceMeanTokenMean", "SequenceMeanTokenSum", "SequenceMeanTokenSumNorm"]
KLEstimator = Literal["K1", "K2", "K3", "K3Weighted"]

GROUP_SIZE_DEFAULTS: dict[str, int] = {"GRPO": 8, "PPO": 1}
WHITEN_DEFAULTS: dict[str, bool] = {"GRPO": False, "PPO": True}
HAS_CRITIC: dict[str, bool] = {"GRPO": False, "PPO": True}


class AdvantageSpec(ApiModel):
    """How rewards become advantages."""

    normalize_std: bool = True
    """GRPO: whether advantages are divided by the standard deviation of their group. false is Dr. GRPO.
    Default true."""

    gamma: float = Field(default=1.0, ge=0, le=1)
    """PPO: discount per token. Default 1.0."""

    lambda_: float = Field(default=1.0, ge=0, le=1, alias="lambda")
    """PPO: the lambda of generalized advantage estimation. Default 1.0."""

    # A factory keeps the default out of the JSON schema: it depends on the algorithm, and an API server would
    # fill in the wrong one.
    whiten: bool = Field(default_factory=bool)
    """Whether advantages are brought to mean 0 and variance 1 over all response tokens of the batch.
    Unset: true for PPO, false for GRPO."""


class LossSpec(ApiModel):
    """The policy loss."""

    name: Literal["PPOClip"] = "PPOClip"
    """The loss of the catalogue. Default PPOClip."""

    clip_low: float = Field(default=0.2, ge=0, lt=1)
    """How far the probability ratio may fall below 1 before it stops counting. Default 0.2."""

    clip_high: float = Field(default=0.2, ge=0)
    """How far the probability ratio may rise above 1 before it stops counting, at least clipLow. Default
    0.2."""

    dual_clip: float | None = None
    """Bound on the loss of tokens with a negative advantage, as a factor above 1. Unset: no bound."""

    aggregation: Aggregation = "TokenMean"
    """How token losses become one number: `TokenMean` over all tokens of the mini-batch;
    `SequenceMeanTokenMean` mean per row, then over rows; `SequenceMeanTokenSum` sum per row, then mean
    over rows; `SequenceMeanTokenSumNorm` the same divided by maxResponseTokens, as in Dr. GRPO. Default
    TokenMean."""

    entropy_coefficient: float = 0.0
    """Weight of the entropy bonus. Default 0.0: none."""


class KLSpec(ApiModel):
    """The penalty that keeps the policy near the reference model."""

    estimator: KLEstimator = "K3"
    """How the divergence is estimated per token; `K3Weighted` corrects K3 by the importance ratio so that
    its gradient is unbiased. Default K3."""

    coefficient: float = Field(default=0.001, ge=0)
    """Weight of the penalty. 0: no penalty, and no reference model is loaded. Default 0.001."""

    placement: Literal["Loss", "Reward"] = "Loss"
    """Whether the penalty is a term of the loss, or is subtracted from the token rewards. Default Loss."""

    target: float | None = Field(default=None, gt=0)
    """KL per row that an adaptive coefficient steers towards. Unset: the coefficient stays as it is."""

    horizon: int = Field(default=10000, ge=1)
    """Over how many rows the adaptive coefficient changes. Default 10000."""


class CriticSpec(ApiModel):
    """The value model of PPO."""

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


class AlgorithmSpec(ApiModel):
    """The algorithm; what is unset has the algorithm's own default."""

    name: AlgorithmName
    """An algorithm of the catalogue: `GRPO` compares the responses of one prompt with each other; `PPO`
    compares each token with a learned value."""

    group_size: int = Field(
        default_factory=lambda validated: GROUP_SIZE_DEFAULTS[validated.get("name", "GRPO")], ge=1, le=1024
    )
    """Responses per prompt. Unset: 8 for GRPO, 1 for PPO."""

    update_epochs: int = Field(default=1, ge=1)
    """How often a step goes over its rows. Default 1."""

    advantage: AdvantageSpec = AdvantageSpec()
    """How rewards become advantages."""

    loss: LossSpec = LossSpec()
    """The policy loss."""

    kl: KLSpec = KLSpec()
    """The penalty that keeps the policy near the reference model."""

    critic: CriticSpec | None = None
    """The value model. Only for PPO, where unset means its defaults."""

    overlong: OverlongSpec | None = None
    """Soft penalty for responses near the limit. Unset: none."""

    mask_truncated: bool = False
    """Whether rows cut off at maxResponseTokens are left out of the loss. Default false."""

    @model_validator(mode="before")
    @classmethod
    def _fill_algorithm_defaults(cls, given: Any) -> Any:
        """Put in the defaults of nested fields that depend on the algorithm."""
        if not isinstance(given, dict) or given.get("name") not in list(WHITEN_DEFAULTS):
            return given
        filled = dict(given)
        advantage = given.get("advantage", {})
        if isinstance(advantage, dict):
            filled["advantage"] = {"whiten": WHITEN_DEFAULTS[given["name"]], **advantage}
        if HAS_CRITIC[given["name"]] and given.get("critic") is None:
            filled["critic"] = {}
        return filled
