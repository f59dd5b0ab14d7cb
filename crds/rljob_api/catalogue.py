"""Every built-in stage and algorithm: what it is called, what it reads and writes, what it needs.

CLI, operator and worker check a DAG against these same entries; a test compares them with the worker's registries.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from rljob_api.keys import ACTOR, CRITIC
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

    @property
    def num_models(self) -> int:
        """How many models it takes."""
        return 0 if self.use == "None" else 1


@dataclass(frozen=True)
class Algorithm:
    """An algorithm of the catalogue, with the options that mean something to it only."""

    name: str
    purpose: str
    paper: str
    has_critic: bool
    compares_groups: bool
    """Whether advantages compare the responses of one prompt, so that one response says nothing."""
    advantage_options: tuple[str, ...]
    """Fields of `algorithm.advantage` that it looks at."""


def data_columns(spec: RLJobSpec) -> tuple[str, ...]:
    """Columns of the data that are carried along: those that rewards need, and those a Rollout lists in `writes`."""
    for_rewards = [reward.column for reward in spec.rewards if reward.column is not None]
    stages = spec.dag.stages if spec.dag is not None else ()
    listed = [column for stage in stages if stage.run == "Rollout" for column in stage.writes]
    return tuple(column for column in dict.fromkeys(for_rewards + listed) if column not in ROLLOUT_COLUMNS)


def kl_in(spec: RLJobSpec, placement: Literal["Loss", "Reward"]) -> bool:
    """Whether the job has a KL penalty in this place."""
    return spec.algorithm.kl.coefficient > 0 and spec.algorithm.kl.placement == placement


def _rollout(spec: RLJobSpec, _trained: bool) -> Columns:
    return Columns(writes=ROLLOUT_COLUMNS + data_columns(spec))


def _reward(spec: RLJobSpec, _trained: bool) -> Columns:
    return Columns(reads=("prompt_ids", "response_ids", "source", *data_columns(spec)), writes=("rewards",))


def _log_probs(_spec: RLJobSpec, trained: bool) -> Columns:
    return Columns(reads=_TOKENS, writes=("old_log_probs" if trained else "ref_log_probs",))


def _values(_spec: RLJobSpec, _trained: bool) -> Columns:
    return Columns(reads=_TOKENS, writes=("values",))


def _advantage(spec: RLJobSpec, _trained: bool) -> Columns:
    has_critic = ALGORITHMS[spec.algorithm.name].has_critic
    reads = ["rewards", "response_mask"]
    reads += ["values"] * has_critic
    reads += ["old_log_probs", "ref_log_probs"] * kl_in(spec, "Reward")
    reads += ["truncated"] * spec.algorithm.mask_truncated
    writes = ["advantages"] + ["returns"] * has_critic + ["loss_mask"] * spec.algorithm.mask_truncated
    return Columns(reads=tuple(reads), writes=tuple(writes))


def _update_policy(spec: RLJobSpec, _trained: bool) -> Columns:
    reads = [*_TOKENS, "response_mask", "advantages"]
    reads += ["ref_log_probs"] * kl_in(spec, "Loss")
    reads += ["loss_mask"] * spec.algorithm.mask_truncated
    return Columns(reads=tuple(reads), optional=("old_log_probs",))


def _update_critic(spec: RLJobSpec, _trained: bool) -> Columns:
    reads = [*_TOKENS, "response_mask", "values", "returns"]
    reads += ["loss_mask"] * spec.algorithm.mask_truncated
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

ALGORITHMS: Mapping[str, Algorithm] = {
    algorithm.name: algorithm
    for algorithm in (
        Algorithm(
            "GRPO",
            "compares the responses to one prompt with each other",
            "https://arxiv.org/abs/2402.03300",
            has_critic=False,
            compares_groups=True,
            advantage_options=("normalize_std", "whiten"),
        ),
        Algorithm(
            "PPO",
            "compares each token with the value that a critic expects",
            "https://arxiv.org/abs/1707.06347",
            has_critic=True,
            compares_groups=False,
            advantage_options=("gamma", "lambda_", "whiten"),
        ),
    )
}

LOSSES: Mapping[str, str] = {
    "PPOClip": "clipped probability ratio, with separate bounds below and above",
}
"""Policy losses, by name."""

KL_ESTIMATORS: Mapping[str, str] = {
    "K1": "difference of log-probabilities; unbiased, high variance, and as a loss its gradient is 0 on average",
    "K2": "half the squared difference; biased, its gradient is right",
    "K3": "exp(d) - d - 1 with d = reference - current; unbiased and never negative, its gradient is biased",
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
