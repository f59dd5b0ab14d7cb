"""The model card of an exported checkpoint: what it began as, how it was trained, what it reached. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from rljob_api.planning.plan import Plan
from rljob_api.vocabulary.data_url import hub_model
from rljob_api.vocabulary.model import ApiModel
from rljob_worker.metrics.by_policy import labelled

_FIGURES = {
    "validation/accuracy": "accuracy in validation",
    "reward/mean": "mean reward",
    "kl/reference": "KL divergence from the reference, nats",
    "response_length/mean": "mean response length, tokens",
}


def model_card(plan: Plan, policy: str, step: int, records: Sequence[Mapping[str, Any]], *, is_adapter: bool) -> str:
    """README.md of a policy as the Hugging Face hub reads it. records: the run's metrics by step."""
    spec, label = plan.spec_of(policy), plan.label_of(policy)
    title = plan.job if label is None else f"{plan.job}: {label}"
    base = spec.source_of(policy).path
    task = "image-text-to-text" if spec.sees else "text-generation"
    head: dict[str, Any] = {"library_name": "peft" if is_adapter else "transformers", "pipeline_tag": task}
    if not base.startswith(("/", ".", "~")):  # a folder of somebody's machine means nothing to the hub
        head["base_model"] = hub_model(base).name
    head["tags"] = ["rljob", "reinforcement-learning", spec.algorithm.name.lower()]
    lines = [
        "---", yaml.safe_dump(head, sort_keys=False).rstrip(), "---", "", f"# {title}", "",
        f"Trained with rljob: {spec.algorithm.name}, {step} steps of {spec.data.batch_size} prompts with "
        f"{spec.algorithm.group_size} responses each.", "", "| | |", "|---|---|",
    ]  # fmt: skip
    figures = labelled(_FIGURES, label)
    reached = ((words, _at(records, step, name)) for name, words in figures.items())
    lines += [f"| {words} | {value:.4g} |" for words, value in reached if value is not None]
    lines += [f"| reward `{reward.name}`, weight {reward.weight:g} | `{reward.run}` |" for reward in spec.rewards]
    lines += [
        "",
        "<details><summary>Algorithm and training</summary>",
        "",
        "```yaml",
        _block(spec.algorithm, "algorithm"),
    ]
    lines += [_block(spec.training, "training"), _block(spec.rollout, "rollout"), "```", "", "</details>", ""]
    return "\n".join(lines)


def _at(records: Sequence[Mapping[str, Any]], step: int, name: str) -> float | None:
    """The newest value up to a step."""
    result = [record[name] for record in records if record["step"] <= step and record.get(name) is not None]
    return result[-1] if result else None


def _block(section: ApiModel, name: str) -> str:
    body = section.model_dump(mode="json", by_alias=True, exclude_none=True)
    return str(yaml.safe_dump({name: body}, sort_keys=False)).rstrip()
