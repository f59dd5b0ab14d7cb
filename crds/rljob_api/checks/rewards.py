"""Can the models of rewards be asked, and can estimators tell where in a row a reward is?"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import ValidationError

from rljob_api.catalogue.algorithms import ESTIMATORS
from rljob_api.catalogue.services import Classifier
from rljob_api.catalogue.stages import REWARD_MODEL
from rljob_api.checks.network import network_problems
from rljob_api.checks.services import option_problem
from rljob_api.checks.subject import Subject, problem
from rljob_api.v1alpha1 import RewardSpec
from rljob_api.vocabulary.problem import Problem, suggestion

_OF_CALLS = ("service", "url", "timeout_seconds", "on_error", "spread", "confinement")
"""Fields that say something of functions and services alone."""


def check_reward_fields(subject: Subject) -> Iterator[Problem]:
    """What a reward says that is a model of the job's own."""
    asked: dict[str, int] = {}
    for i, reward in enumerate(subject.spec.rewards):
        path = f"spec.rewards[{i}]"
        if (reward.run == REWARD_MODEL) != (reward.model is not None):
            yield _half(path, reward)
        elif reward.model is not None:
            yield from _of_model(path, reward, subject)
            if (first := asked.setdefault(reward.model, i)) != i:
                message = f"spec.rewards[{first}] is what this model says already"
                yield problem(f"{path}.model", reward.model, message, "Keep one of the two, with both weights added.")


def check_reward_networks(subject: Subject) -> Iterator[Problem]:
    """A network is permitted where there is one that is closed."""
    is_confined = any(reward.confinement != "Off" for reward in subject.spec.rewards)
    for i, reward in enumerate(subject.spec.rewards):
        if reward.network and not is_confined:
            message = "without confinement a reward reaches every network"
            fix = "Add confinement: Required, or leave it out."
            yield problem(f"spec.rewards[{i}].network", reward.network, message, fix)
        yield from network_problems(f"spec.rewards[{i}].network", reward.network)


def check_reward_weights(subject: Subject) -> Iterator[Problem]:
    """Something is rewarded. A DAG of the job's own may make rewards of others."""
    weights = [reward.weight for reward in subject.spec.rewards]
    if weights and not any(weights) and subject.spec.dag is None:
        message = "every weight is 0, so that every reward is 0 and nothing is learned"
        yield problem("spec.rewards", weights, message, "Give at least one reward a weight other than 0.")


def check_reward_models(subject: Subject) -> Iterator[Problem]:
    """Where models of rewards are computed, and what of the job cannot go without their word."""
    rewards = {reward.model: i for i, reward in enumerate(subject.spec.rewards) if reward.model is not None}
    for stage in subject.resolution.stages.values():
        for model in stage.models:
            if stage.spec.run == REWARD_MODEL and model not in rewards:
                fix = f"Add {{name: {model}, run: {REWARD_MODEL}, model: {model}}} to spec.rewards."
                yield problem(subject.stage_path(stage.name, "models"), model, "no reward is what it says", fix)
            elif stage.spec.run != REWARD_MODEL and model in rewards:
                message = f"stage {stage.name} uses this model too, and needs another head of it"
                fix = "List the model under a name of its own."
                yield problem(f"spec.rewards[{rewards[model]}].model", model, message, fix)
        if rewards and stage.spec.run == "Sample":
            path = f"spec.rewards[{min(rewards.values())}].model"
            message = f"stage {stage.name} has rewards computed between its rounds, where no model of it has a turn"
            fix = "Serve the model in spec.services, or leave out what needs Sample."
            yield problem(path, next(iter(rewards)), message, fix)
    first = {stage.rewards[0] for stage in subject.resolution.declared if stage.rewards}
    for i, reward in enumerate(subject.spec.rewards if subject.spec.validates else ()):
        if reward.model is not None and (reward.name in first if first else i == 0):
            message = "the first reward says who is right in validation, and a model of the job is asked in steps alone"
            fix = "Put a function first; with weight 0 it only watches."
            yield problem(f"spec.rewards[{i}].model", reward.model, message, fix)


def check_spread(subject: Subject) -> Iterator[Problem]:
    """Rewards in the middle of a row are seen by somebody."""
    estimator = ESTIMATORS.get(subject.spec.algorithm.advantage.estimator)
    samples = [stage.name for stage in subject.resolution.stages.values() if stage.spec.run == "Sample"]
    for i, reward in enumerate(subject.spec.rewards):
        if reward.spread == "Row" or reward.model is not None:
            continue
        path = f"spec.rewards[{i}].spread"
        if estimator is not None and not estimator.looks_at_tokens:
            able = ", ".join(estimator.name for estimator in ESTIMATORS.values() if estimator.looks_at_tokens)
            message = f"the estimator {estimator.name} compares one number of each row with those of others"
            fix = f"Leave it out, and say how that number follows from the steps (`aggregate`); or use one of {able}."
            yield problem(path, reward.spread, message, fix)
        elif samples:
            message = f"rewards that stage {samples[0]} has computed are not spread over steps yet"
            yield problem(path, reward.spread, message, "Leave it out, or leave out what needs Sample.")


def _half(path: str, reward: RewardSpec) -> Problem:
    if reward.model is None:
        return problem(f"{path}.run", reward.run, "it names no model", "Add model: and a name of spec.models.")
    message = f"only run: {REWARD_MODEL} asks a model of the job's own"
    return problem(f"{path}.model", reward.model, message, f"Write run: {REWARD_MODEL}, or leave model out.")


def _of_model(path: str, reward: RewardSpec, subject: Subject) -> Iterator[Problem]:
    listed = {model.name: model for model in subject.spec.models}
    if reward.model not in listed:
        fix = suggestion(str(reward.model), listed)
        yield problem(f"{path}.model", reward.model, "spec.models lists no such model", fix)
    elif listed[reward.model].initialise == "Random":
        message = f"{reward.model} begins with random weights, and nobody trains it: what it says means nothing"
        yield problem(f"{path}.model", reward.model, message, "Name a model that was trained as a classifier.")
    for name in _OF_CALLS:
        field, result = type(reward).model_fields[name], getattr(reward, name)
        if result != field.default:
            message = "the workers compute a model of the job, for each row one number, and nobody is called"
            yield problem(f"{path}.{field.alias or name}", result, message, "Leave it out.")
    try:
        Classifier.model_validate(reward.options, by_alias=True, by_name=False)
    except ValidationError as error:
        for item in error.errors(include_url=False):
            yield option_problem(f"{path}.options", REWARD_MODEL, Classifier, item)
