"""Does every policy generate its rows in one place, and learn from them?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rljob_api.catalogue.columns import computes_full_kl
from rljob_api.checks.subject import Subject, problem
from rljob_api.pipeline.resolution import ResolvedStage
from rljob_api.v1alpha1.dag import UPDATE_POLICY
from rljob_api.vocabulary.keys import REFERENCE
from rljob_api.vocabulary.problem import Problem, suggestion


def check_generation(subject: Subject) -> Iterator[Problem]:
    """Models that generate are in training, and each does so in one stage."""
    policies, homes = subject.spec.policies, dict[str, str]()
    for stage in subject.resolution.stages.values():
        for model in stage.models if stage.generates else ():
            path = subject.stage_path(stage.name, "models")
            if policies and model not in policies and model in subject.model_names:
                message = (
                    f"no stage with run: {UPDATE_POLICY} trains the model, so new weights to generate with never come"
                )
                fix = f"Write one that is trained, such as {policies[0]}, or add a stage that trains {model}."
                yield problem(path, model, message, fix)
            elif (other := homes.setdefault(model, stage.name)) != stage.name:
                message = f"stage {other} generates with model {model} already"
                yield problem(path, model, message, "Keep one of the two stages, or name another model.")


def check_policy_rows(subject: Subject) -> Iterator[Problem]:
    """A stage sees rows of one policy, and a policy that generates learns from its own."""
    resolution = subject.resolution
    own = {model: stage.name for stage in resolution.stages.values() if stage.generates for model in stage.models}
    for stage in resolution.stages.values():
        if (sources := sorted(resolution.sources[stage.name]))[1:] and not _is_mixed_before(subject, stage):
            message = f"rows of stages {' and '.join(sources)} meet here, and each has responses of its own to a prompt"
            path, result = subject.stage_path(stage.name, "after"), list(stage.spec.after)
            yield problem(path, result, message, f"Keep what comes from one of them, such as {sources[0]}.")
        elif sources and stage.spec.run == UPDATE_POLICY:
            yield from _of_others(subject, stage, sources[0], own)


def _is_mixed_before(subject: Subject, stage: ResolvedStage) -> bool:
    """Whether a stage that comes before it is to blame already."""
    sources = subject.resolution.sources
    return any(len(sources.get(name, ())) > 1 for name in stage.spec.after)


def _of_others(subject: Subject, stage: ResolvedStage, source: str, own: Mapping[str, str]) -> Iterator[Problem]:
    """An update of a policy on what another one answered, although it answers itself. source: of the rows."""
    for model in stage.models:
        if (mine := own.get(model, source)) != source:
            message = f"the rows are those of stage {source}, and stage {mine} generates with model {model}"
            path, result = subject.stage_path(stage.name, "after"), list(stage.spec.after)
            yield problem(path, result, message, f"Put {mine}, or stages after it, into after.")


def check_full_kl(subject: Subject) -> Iterator[Problem]:
    """What an update compares whole distributions with is there."""
    if not computes_full_kl(subject.spec):
        return
    references = dict.fromkeys(subject.spec.beside(REFERENCE, policy) for policy in subject.spec.policies)
    for model in references:
        if model not in subject.model_names:
            message = f"updates compare with model {model}, which starts as a copy of the policy where there is one"
            fix = f"List a model {model} in spec.models, or write another estimator."
            yield problem("spec.algorithm.kl.estimator", subject.spec.algorithm.kl.estimator, message, fix)


def check_policy_rewards(subject: Subject) -> Iterator[Problem]:
    """Rewards that stages choose: there are such, in stages that compute rewards, and each is computed somewhere."""
    names = [reward.name for reward in subject.spec.rewards]
    computing = [stage for stage in subject.resolution.stages.values() if stage.spec.run in ("Reward", "Sample")]
    for stage in subject.resolution.stages.values():
        path = subject.stage_path(stage.name, "rewards")
        if stage.spec.rewards and stage not in computing:
            rewards = list(stage.spec.rewards)
            yield problem(
                path, rewards, f"{stage.spec.run} computes no rewards", "Leave it out; a Reward stage has it."
            )
        for i, name in enumerate(stage.spec.rewards):
            if name not in names:
                yield problem(f"{path}[{i}]", name, "there is no such reward", suggestion(name, names))
            elif name in stage.spec.rewards[:i]:
                yield problem(f"{path}[{i}]", name, "this stands in the list before", "Leave it out.")
    chosen = {name for stage in computing for name in stage.spec.rewards or names}
    for i, name in enumerate(names if computing else ()):
        if name not in chosen:
            fix = "Leave it out, or add it to the rewards of a Reward stage."
            yield problem(f"spec.rewards[{i}].name", name, "no stage computes the reward", fix)
