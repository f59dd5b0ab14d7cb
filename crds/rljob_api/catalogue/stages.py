"""Every built-in stage: what it is called, what it is for, what it needs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rljob_api.catalogue.columns import (
    Columns,
    advantage_columns,
    log_probs_columns,
    progress_reward_columns,
    reward_columns,
    reward_model_columns,
    rollout_columns,
    sample_columns,
    update_critic_columns,
    update_policy_columns,
    values_columns,
)
from rljob_api.v1alpha1 import RLJobSpec
from rljob_api.vocabulary.keys import ACTOR, CRITIC

Use = Literal["Generates", "Trains", "Scores", "None"]

REWARD_MODEL = "RewardModel"
"""The stage in which a model of the job's own computes a reward, and what such a reward has in `run`."""

PROGRESS_REWARD = "ProgressReward"
"""The stage that rewards episodes by their videos."""

USER_STAGE = re.compile(r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$")
"""How a user's own function is written: `module:function`."""


@dataclass(frozen=True)
class BuiltInStage:
    """A stage of the catalogue."""

    name: str
    purpose: str
    use: Use
    """What it does with its model: generates from it, trains it, only scores with it, or has none."""
    columns: Callable[[RLJobSpec, Sequence[str], bool], Columns]
    """(spec, the stage's models, whether the job trains them) -> columns."""
    default_model: str | None = None
    has_value_head: bool = False
    """Whether its model has a head of one number in place of the last layer."""
    needs_groups: bool = False
    can_balance: bool = True
    scatters_rows: bool = False
    """Whether its rows lie on whatever worker made them, and not where their numbers say."""

    @property
    def num_models(self) -> int:
        """How many models it takes; where agents of a team have several, it may take one for each agent."""
        return 0 if self.use == "None" else 1

    @property
    def may_share_rows(self) -> bool:
        """Whether it may have several models, each for the rows of its agents, of which it writes one column."""
        return self.name in ("Rollout", "Sample", "LogProbs", "Values")


STAGES: Mapping[str, BuiltInStage] = {
    stage.name: stage
    for stage in (
        BuiltInStage(
            "Rollout",
            "takes the step's prompts and generates groupSize responses to each",
            "Generates",
            rollout_columns,
            default_model=ACTOR,
            can_balance=False,
        ),
        BuiltInStage(
            "Sample",
            "Rollout and Reward in rounds, until the step has the rows that `algorithm.sampling` asks for; for ReMax "
            "also the reward of each prompt's greedy response",
            "Generates",
            sample_columns,
            default_model=ACTOR,
            can_balance=False,
            scatters_rows=True,
        ),
        BuiltInStage("Reward", "calls the reward functions on every response", "None", reward_columns),
        BuiltInStage(
            "LogProbs",
            "log-probabilities of the responses: old ones of a model in training, reference ones of any other",
            "Scores",
            log_probs_columns,
        ),
        BuiltInStage(
            REWARD_MODEL,
            "how good each row is, as a model says that `rewards` name",
            "Scores",
            reward_model_columns,
            has_value_head=True,
        ),
        BuiltInStage(
            PROGRESS_REWARD,
            "rewards episodes that failed by how near their videos come to those that succeeded (SRPO)",
            "None",
            progress_reward_columns,
        ),
        BuiltInStage(
            "Values",
            "the critic's value of every token",
            "Scores",
            values_columns,
            default_model=CRITIC,
            has_value_head=True,
        ),
        BuiltInStage(
            "Advantage",
            "turns rewards into advantages, and into returns for a critic",
            "None",
            advantage_columns,
            needs_groups=True,
        ),
        BuiltInStage(
            "UpdatePolicy", "optimizer steps on the policy", "Trains", update_policy_columns, default_model=ACTOR
        ),
        BuiltInStage(
            "UpdateCritic",
            "optimizer steps on the critic",
            "Trains",
            update_critic_columns,
            default_model=CRITIC,
            has_value_head=True,
        ),
    )
}
