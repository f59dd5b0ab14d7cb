"""Built-in stages by catalogue name, and the user's by `module:function`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rljob_worker.stages.advantage import Advantage
from rljob_worker.stages.received_rows import ReceivedRows
from rljob_worker.stages.rewarding.progress_reward import ProgressReward
from rljob_worker.stages.rewarding.reward import Reward
from rljob_worker.stages.rewarding.reward_model import RewardModel
from rljob_worker.stages.rollout import Rollout
from rljob_worker.stages.sample import Sample
from rljob_worker.stages.scoring import LogProbs, Values
from rljob_worker.stages.stage import BuildStage, Resources, Stage
from rljob_worker.stages.update import UpdateCritic, UpdatePolicy
from rljob_worker.stages.user import UserStage

if TYPE_CHECKING:
    from rljob_api.planning.plan import StagePlan

STAGES: dict[str, BuildStage] = {
    "Rollout": Rollout,
    "Sample": Sample,
    "Reward": Reward,
    "RewardModel": RewardModel,
    "ProgressReward": ProgressReward,
    "LogProbs": LogProbs,
    "Values": Values,
    "Advantage": Advantage,
    "UpdatePolicy": UpdatePolicy,
    "UpdateCritic": UpdateCritic,
}


def build_stage(stage: StagePlan, resources: Resources) -> Stage:
    """The stage `run:` names: a catalogue name, or else the user's function; in its place the rows of one that guests
    run."""
    run = stage.run
    if stage.generated_in is not None:
        return ReceivedRows(stage, resources)
    if run == "Rollout" and resources.plan.draws_in_rounds(stage):
        run = "Sample"
    return STAGES.get(run, UserStage)(stage, resources)
