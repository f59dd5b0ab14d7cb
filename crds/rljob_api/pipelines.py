"""The pipeline of an algorithm for jobs that do not write their own."""

from __future__ import annotations

from rljob_api.catalogue import corrects, full_kl, kl_in, needs_sample
from rljob_api.keys import ACTOR, CRITIC, REFERENCE
from rljob_api.v1alpha1 import RLJobSpec, StageSpec


def stages_of(spec: RLJobSpec) -> tuple[StageSpec, ...]:
    """The stages of the job: its own, or the algorithm's."""
    return spec.dag.stages if spec.dag is not None else default_stages(spec)


def default_stages(spec: RLJobSpec) -> tuple[StageSpec, ...]:
    """The algorithm's pipeline, with only the stages that this job's options need."""
    sources = _source_stages(spec)
    scores = _scoring_stages(spec, after=(sources[0].name,))
    early = [stage.name for stage in scores if stage.models == (CRITIC,) or kl_in(spec, "Reward")]
    late = [stage.name for stage in scores if stage.models != (CRITIC,)]
    stages = [
        *sources,
        *scores,
        StageSpec(name="advantage", run="Advantage", after=(sources[-1].name, *early)),
        StageSpec(name="update", run="UpdatePolicy", models=(ACTOR,), after=("advantage", *late), balance="Tokens"),
    ]
    if spec.algorithm.critic is not None:
        after = ("advantage", "values")
        stages.append(
            StageSpec(name="update_critic", run="UpdateCritic", models=(CRITIC,), after=after, balance="Tokens")
        )
    return tuple(stages)


def needs_old_log_probs(spec: RLJobSpec) -> bool:
    """Whether the log-probabilities from before the update must be kept.

    With one optimizer step per step the update's own log-probabilities are the old ones; but a penalty in the reward
    is computed before there is an update, and from the training engine's numbers on both sides; and a correction
    compares them with the rollout engine's.
    """
    return spec.num_optimizer_steps > 1 or kl_in(spec, "Reward") or corrects(spec)


def _source_stages(spec: RLJobSpec) -> list[StageSpec]:
    """What makes the rows and their rewards; the last one writes the rewards."""
    if needs_sample(spec):
        return [StageSpec(name="sample", run="Sample", models=(ACTOR,))]
    return [
        StageSpec(name="rollout", run="Rollout", models=(ACTOR,)),
        StageSpec(name="reward", run="Reward", after=("rollout",)),
    ]


def _scoring_stages(spec: RLJobSpec, after: tuple[str, ...]) -> list[StageSpec]:
    stages = []
    if spec.algorithm.kl.coefficient > 0 and not full_kl(spec):
        stages.append(StageSpec(name="reference", run="LogProbs", models=(REFERENCE,), after=after))
    if needs_old_log_probs(spec):
        stages.append(StageSpec(name="old_log_probs", run="LogProbs", models=(ACTOR,), after=after))
    if spec.algorithm.critic is not None:
        stages.append(StageSpec(name="values", run="Values", models=(CRITIC,), after=after))
    return stages
