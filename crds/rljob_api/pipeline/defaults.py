"""The pipeline of an algorithm for jobs that do not write their own."""

from __future__ import annotations

from rljob_api.catalogue.columns import PROGRESS_REWARDS, compares_with_old, needs_sample
from rljob_api.catalogue.stages import PROGRESS_REWARD, REWARD_MODEL, STAGES
from rljob_api.v1alpha1 import RLJobSpec, StageSpec
from rljob_api.vocabulary.keys import CRITIC, MAX_NAME, REFERENCE


def stages_of(spec: RLJobSpec) -> tuple[StageSpec, ...]:
    """The stages of the job: its own, or the algorithm's."""
    return spec.dag.stages if spec.dag is not None else default_stages(spec)


def default_stages(spec: RLJobSpec) -> tuple[StageSpec, ...]:
    """The algorithm's pipeline, with only the stages that this job's options need."""
    sources, policies = _source_stages(spec), spec.policies
    for_advantage = set(STAGES["Advantage"].columns(spec, (), False).reads)
    for_update = set(STAGES["UpdatePolicy"].columns(spec, policies, True).reads)
    # With one optimizer step per step the update's own log-probabilities are the old ones.
    if spec.num_optimizer_steps > 1 and compares_with_old(spec):
        for_update.add("old_log_probs")
    needed = [score for score in _scores(spec) if score[2] in for_advantage | for_update]
    early = [name for name, _, column in needed if column in for_advantage]
    late = [name for name, _, column in needed if column in for_update]
    progress = _progress_stages(spec, after=sources[0].name)
    stages = [
        *sources,
        *(_scoring(name, models, after=sources[0].name) for name, models, _ in needed),
        *progress,
        _advantage_stage(progress, after=(sources[-1].name, *early)),
        *(_update("UpdatePolicy", "update", policies, policy, ("advantage", *late)) for policy in policies),
    ]
    if spec.algorithm.critic is not None:
        critics = critics_of(spec)
        after = ("advantage", "values")
        stages += [_update("UpdateCritic", "update_critic", critics, critic, after) for critic in critics]
    return tuple(stages)


def critics_of(spec: RLJobSpec) -> tuple[str, ...]:
    """The models that value rows."""
    return tuple(dict.fromkeys(spec.critic_of(agent) for agent in spec.agents)) or (CRITIC,)


def _scores(spec: RLJobSpec) -> tuple[tuple[str, tuple[str, ...], str], ...]:
    """(name, models, column) of the stages that score rows."""
    references = tuple(spec.beside(REFERENCE, policy) for policy in spec.policies)
    return (
        ("reference", references, "ref_log_probs"),
        ("old_log_probs", spec.policies, "old_log_probs"),
        ("values", critics_of(spec), "values"),
    )


def _update(run: str, name: str, models: tuple[str, ...], model: str, after: tuple[str, ...]) -> StageSpec:
    """The update of one of several models, named after it where it is not the only one."""
    if len(models) > 1:
        name = f"{name}_{model}" if run == "UpdatePolicy" else f"update_{model}"
    return StageSpec(name=name[:MAX_NAME], run=run, models=(model,), after=after, balance="Tokens")


def _scoring(name: str, models: tuple[str, ...], after: str) -> StageSpec:
    return StageSpec(name=name, run="Values" if name == "values" else "LogProbs", models=models, after=(after,))


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
        return [StageSpec(name="sample", run="Sample", models=spec.policies)]
    models = dict.fromkeys(reward.model for reward in spec.rewards if reward.model is not None)
    grading = [
        StageSpec(name=f"reward_model_{number}", run=REWARD_MODEL, models=(model,), after=("rollout",))
        for number, model in enumerate(models, start=1)
    ]
    return [
        StageSpec(name="rollout", run="Rollout", models=spec.policies),
        *grading,
        StageSpec(name="reward", run="Reward", after=("rollout", *(stage.name for stage in grading))),
    ]
