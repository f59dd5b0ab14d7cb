"""Whether responses fit into what a model can read.  Where its config is at hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rljob_api.checks.subject import problem
from rljob_api.memory.model_shape import ModelShape
from rljob_api.planning.plan import Plan
from rljob_api.vocabulary.problem import Problem


def position_problems(plan: Plan, shapes: Mapping[str, ModelShape]) -> Iterator[Problem]:
    """Of every model that generates: responses that are too long whatever the prompt. Rows whose own prompt makes them
    too long are refused when they are drawn."""
    rollout, prompt = plan.spec.rollout, plan.spec.data.max_prompt_tokens
    longest = min(rollout.max_response_tokens, (rollout.max_sequence_tokens or rollout.max_response_tokens + 1) - 1)
    for path in dict.fromkeys(engine.path for engine in plan.engines if engine.kind == "Rollout"):
        limit = shapes[path].max_positions if path in shapes else None
        if limit is not None and longest >= limit:
            fits = (
                f"{limit - prompt} or less, or set"
                if limit > prompt
                else "less, and lower data.maxPromptTokens, or set"
            )
            yield problem(
                "spec.rollout.maxResponseTokens",
                rollout.max_response_tokens,
                f"model {path} reads {limit} positions (max_position_embeddings), prompt and response together",
                f"Write {fits} rollout.maxSequenceTokens: {limit}.",
            )
