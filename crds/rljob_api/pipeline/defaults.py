"""The pipeline of an algorithm for jobs that do not write their own."""

from __future__ import annotations

from rljob_api.catalogue.columns import PROGRESS_REWARDS, compares_with_old, needs_sample
from rljob_api.catalogue.stages import PROGRESS_REWARD, REWARD_MODEL, STAGES
from rljob_api.v1alpha1 import RLJobSpec, StageSpec
from rljob_api.vocabulary.keys import ACTOR, CRITIC, REFERENCE


def stages_of(spec: RLJobSpec) -> tuple[StageSpec, ...]:
    """The stages of the job: its own, or the algorithm's."""
    return spec.dag.stages if spec.dag is not None else default_stages(spec)


def default_stages(spec: RLJobSpec) -> tuple[StageSpec, ...]:
    """The algorithm's pipeline, with only the stages that this job's options need."""
    sources = _source_stages(spec)
    for_advantage = set(STAGES["Advantage"].columns(spec, (), False).reads)
    for_update = set(STAGES["UpdatePolicy"].columns(spec, (ACTOR,), True).reads)
    # With one optimizer step per step the update's own log-probabilities are the old ones.
    if spec.num_optimizer_steps > 1 and compares_with_old(spec):
        for_update.add("old_log_probs")
    needed = [score for score in _SCORES if score[2] in for_advantage | for_update]
    early = [name for name, _, column in needed if column in for_advantage]
    late = [name for name, _, column in needed if column in for_update]
    progress = _progress_stages(spec, after=sources[0].name)
    stages = [
        *sources,
        *(_scoring(name, model, after=sources[0].name) for name, model, _ in needed),
        *progress,
        _advantage_stage(progress, after=(sources[-1].name, *early)),
        StageSpec(name="update", run="UpdatePolicy", models=(ACTOR,), after=("advantage", *late), balance="Tokens"),
    ]
    if spec.algorithm.critic is not None:
        stages.append(
            StageSpec(
                name="update_critic",
                run="UpdateCritic",
                models=(CRITIC,),
                after=("advantage", "values"),
                balance="Tokens",
            )
        )
    return tuple(stages)


_SCORES = (
    ("reference", REFERENCE, "ref_log_probs"),
    ("old_log_probs", ACTOR, "old_log_probs"),
    ("values", CRITIC, "values"),
)
"""(name, model, column) of the stages that score rows."""


def _scoring(name: str, model: str, after: str) -> StageSpec:
    return StageSpec(name=name, run="Values" if model == CRITIC else "LogProbs", models=(model,), after=(after,))


def _progress_stages(spec: RLJobSpec, after: str) -> list[StageSpec]:
    simulator = spec.rollout.simulator
    if spec.algorithm.progress is None or simulator is None or simulator.video is None:
        return []
    return [StageSpec(name="progress", run=PROGRESS_REWARD, after=(after,))]


def _advantage_stage(progress: list[StageSpec], after: tuple[str, ...]) -> StageSpec:
    """Advantages of the job's rewards, or of those by video in their place."""
    if not progress:
        return StageSpec(name="advantage", run="Advantage", after=after)
    rename, names = {"rewards": PROGRESS_REWARDS}, tuple(stage.name for stage in progress)
    return StageSpec(name="advantage", run="Advantage", after=(*names, *after), rename=rename)


def _source_stages(spec: RLJobSpec) -> list[StageSpec]:
    """What makes the rows and their rewards; the last one writes the rewards."""
    if needs_sample(spec):
        return [StageSpec(name="sample", run="Sample", models=(ACTOR,))]
    models = dict.fromkeys(reward.model for reward in spec.rewards if reward.model is not None)
    grading = [
        StageSpec(name=f"reward_model_{number}", run=REWARD_MODEL, models=(model,), after=("rollout",))
        for number, model in enumerate(models, start=1)
    ]
    return [
        StageSpec(name="rollout", run="Rollout", models=(ACTOR,)),
        *grading,
        StageSpec(name="reward", run="Reward", after=("rollout", *(stage.name for stage in grading))),
    ]
