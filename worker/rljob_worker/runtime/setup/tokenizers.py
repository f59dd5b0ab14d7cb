"""Tokenizers of a job's models, and whether models that get rows of one another have the same tokens."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from rljob_api.catalogue.columns import computes_full_kl
from rljob_api.planning.plan import Plan, StagePlan
from rljob_api.v1alpha1.dag import UPDATE_POLICY
from rljob_api.vocabulary.keys import REFERENCE
from rljob_worker.errors import InvalidJob
from rljob_worker.process.start_phases import phase

_SCORING = ("LogProbs", "Values")
"""Stages whose models are given token ids that a policy sampled."""


def load_tokenizer(plan: Plan, model: str) -> Any:
    """The tokenizer of a model. Raises InvalidJob naming the directory."""
    from transformers import AutoTokenizer

    path = plan.spec.source_of(model).path
    try:
        with phase("tokenizer"):
            return AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError, KeyError) as error:
        raise InvalidJob(f"models: {why_no_tokenizer(path, error)}") from error


def why_no_tokenizer(path: str, error: Exception) -> str:
    """What is wrong with the place a tokenizer was to come from, and what to do."""
    if Path(path).is_dir():
        there = ", ".join(sorted(item.name for item in Path(path).iterdir())) or "nothing"
        return (
            f"no tokenizer can be loaded from {path}, which holds {there}; it needs tokenizer.json and "
            "tokenizer_config.json beside the weights"
        )
    reason = str(error).partition("\n")[0]
    return (
        f"{path!r} is not a directory next to the job's YAML, and the Hugging Face hub did not give it either: "
        f"{reason}; correct the path, or download the model and name its directory"
    )


def require_alike(one: str, other: str, tokenizers: Mapping[str, Any]) -> None:
    """Raises InvalidJob where two policies of a team have other tokens, or other special tokens."""
    first, second = tokenizers[one], tokenizers[other]
    if first.get_vocab() != second.get_vocab():
        raise InvalidJob(
            f"rollout.conversation.agents: policies {one} and {other} have other tokens, and the rows of a trajectory "
            "are judged, decoded and valued together; let agents have policies with one tokenizer"
        )
    one_map, other_map = first.special_tokens_map, second.special_tokens_map
    differing = sorted(name for name in {*one_map, *other_map} if one_map.get(name) != other_map.get(name))
    if differing:
        raise InvalidJob(
            f"rollout.conversation.agents: policies {one} and {other} differ in special tokens: "
            f"{', '.join(differing)}; let agents have policies with one tokenizer_config.json"
        )


def require_tokens_of_policies(plan: Plan, stages: Sequence[StagePlan]) -> None:
    """Raises InvalidJob for a critic or a reference with other tokens than the policy whose rows it is given. One
    without a tokenizer beside its weights is taken as it is: only its maker knows."""
    # several stages may score with one model, and several models may be scored with for one policy
    vocabulary = cache(lambda model: load_tokenizer(plan, model).get_vocab())
    for stage in stages:
        for model, policy in _scored(plan, stage):
            if plan.spec.source_of(model).path == plan.spec.source_of(policy).path:
                continue
            try:
                own = vocabulary(model)
            except InvalidJob:
                continue
            if own != vocabulary(policy):
                raise InvalidJob(
                    f"models: {model} has other tokens than {policy}, whose rows stage {stage.name} gives it as token "
                    f"ids; name a model with the tokenizer of {policy}"
                )


def _scored(plan: Plan, stage: StagePlan) -> Iterator[tuple[str, str]]:
    """(model, policy) for each policy whose rows a stage gives one of its models."""
    for model in stage.models if stage.run in _SCORING else ():
        yield from ((model, policy) for policy in _policies_scored(plan, stage, model))
    if stage.run == UPDATE_POLICY and computes_full_kl(plan.spec):
        yield from ((plan.spec.beside(REFERENCE, policy), policy) for policy in stage.models)


def _policies_scored(plan: Plan, stage: StagePlan, model: str) -> Collection[str]:
    if not plan.spec.is_team_of_policies:
        return {plan.policy_of(stage.name)}
    return dict.fromkeys(plan.spec.agents[at].policy for at in sorted(plan.spec.agents_of(model)))
