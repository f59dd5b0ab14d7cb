"""Whether rows fit into what a model can read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rljob_api.catalogue.services import Classifier
from rljob_api.checks.subject import problem
from rljob_api.memory.model_shape import ModelShape
from rljob_api.planning.plan import Plan
from rljob_api.v1alpha1 import RLJobSpec
from rljob_api.vocabulary.problem import Problem


def position_problems(plan: Plan, shapes: Mapping[str, ModelShape]) -> Iterator[Problem]:
    """Of every model that reads prompts and responses: rows that may be longer than it reads; of a model of rewards,
    texts that may be."""
    for path in dict.fromkeys(engine.path for engine in plan.engines if not plan.is_reward_model(engine)):
        limit = shapes[path].max_positions if path in shapes else None
        if limit is not None and plan.spec.longest_row > limit:
            yield _too_long(plan.spec, path, limit)
    for i, reward in enumerate(plan.spec.rewards):
        path = "" if reward.model is None else plan.spec.source_of(reward.model).path
        limit = shapes[path].max_positions if path in shapes else None
        longest = Classifier.model_validate(reward.options).max_tokens if path else 0
        if limit is not None and longest > limit:
            message = f"model {path} reads {limit} positions (max_position_embeddings)"
            yield problem(f"spec.rewards[{i}].options.maxTokens", longest, message, f"Write {limit} or less.")


def _too_long(spec: RLJobSpec, path: str, limit: int) -> Problem:
    """Prompts give way, where responses alone have room."""
    prompt, response = spec.data.max_prompt_tokens, spec.rollout.max_response_tokens
    if response < limit:
        field, found, fits = "data.maxPromptTokens", prompt, f"{limit - response} or less"
    else:
        field, found = "rollout.maxResponseTokens", response
        fits = f"{limit - prompt} or less" if prompt < limit else "less, and lower data.maxPromptTokens"
    both = f", or set rollout.maxSequenceTokens: {limit}, which shortens responses to long prompts"
    return problem(
        f"spec.{field}",
        found,
        f"prompts of up to {prompt} tokens and responses of up to {response} make rows of up to {spec.longest_row}, "
        f"and model {path} reads {limit} positions (max_position_embeddings)",
        f"Write {fits}{both if prompt < limit else ''}.",
    )
