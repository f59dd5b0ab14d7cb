"""The text of docs/algorithms.md, from the catalogue, the presets and the worker's docstrings.

python -m rljob_api.pages.algorithms_page worker/rljob_worker/algorithms
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rljob_api.catalogue.algorithms import ALGORITHMS, ESTIMATORS, KL_ESTIMATORS, LOSSES
from rljob_api.pages.algorithm_notes import AGGREGATIONS, CORRECTIONS, OWN_PARTS, SAMPLING, Note, example_of
from rljob_api.pages.formulas import Explanation, Place, explanations
from rljob_api.v1alpha1 import AdvantageSpec, LossSpec, presets
from rljob_api.vocabulary.model import ApiModel

HEADER = """\
# Algorithms

Made by `make docs` from the catalogue and from the functions themselves. `algorithm.name` is a preset: it sets the
defaults of everything else in `spec.algorithm`, and anything may be set otherwise. Options that nothing looks at are
refused. Each example is a part of `spec`.

A is an advantage, r a reward, π the current policy, π_old the one from before the update, π_ref the reference,
μ the one that the rollout engine drew from, ρ = π / π_old, sg(x) is x without its gradient.
"""


@dataclass(frozen=True)
class CatalogueEntry:
    """One row of a table, and its example."""

    name: str
    what: str
    formula: tuple[str, ...]
    papers: tuple[str, ...]
    options: str
    example: Mapping[str, Any]


def algorithms_text(folder: Path) -> str:
    """The whole page, in Markdown. folder: the worker's algorithms."""
    result = explanations(folder)
    tables = {
        "Algorithms": _presets(),
        "Advantage estimators": _estimators(result),
        "Policy losses": _losses(result),
        "KL estimators": _kl(result),
        "Aggregations": map(_of_note, AGGREGATIONS),
        "Corrections between rollout and training": map(_of_note, CORRECTIONS),
        "Sampling and lengths": map(_of_note, SAMPLING),
        "Parts of your own": map(_of_note, OWN_PARTS),
    }
    return "\n".join([HEADER, *(_section(title, entries) for title, entries in tables.items())])


SIMULATOR = {"run": "my_arm:make", "cameras": ["front"], "video": {"path": "models/vjepa2-vitg"}}
"""A simulator of episodes that have videos."""


def _presets() -> Iterator[CatalogueEntry]:
    for preset in ALGORITHMS.values():
        parts = (f"advantage.estimator: {preset.estimator}", f"loss.name: {preset.loss}")
        example = example_of({"name": preset.name}, needs_agents=preset.estimator == "MARFT")
        if preset.rewards_progress:
            example = {**example, "rollout": {"maxResponseTokens": 56, "simulator": SIMULATOR}}
        yield CatalogueEntry(preset.name, preset.purpose, parts, (preset.paper,), _preset_values(preset), example)


def _preset_values(preset: presets.Preset) -> str:
    """What it sets besides the parts, where that differs from a plain GRPO without KL."""
    advantage = presets.advantage_defaults(preset, preset.estimator)
    loss = presets.loss_defaults(preset, preset.loss)
    values = {"groupSize": preset.group_size}
    values |= _differing("advantage", AdvantageSpec, advantage, presets.ADVANTAGE)
    values |= {f"advantage.{_alias(AdvantageSpec, name)}": value for name, value in preset.advantage.items()}
    values |= _differing("loss", LossSpec, loss, presets.LOSS)
    values |= {f"kl.{name}": value for name, value in preset.kl.items()}
    values |= {f"sampling.{name}": value for name, value in preset.sampling.items()}
    return _shown(values)


def _differing(path: str, model: type[ApiModel], values: presets.Options, plain: presets.Options) -> dict[str, Any]:
    return {f"{path}.{_alias(model, n)}": value for n, value in values.items() if n in plain and plain[n] != value}


def _estimators(result: Mapping[Place, Explanation]) -> Iterator[CatalogueEntry]:
    for estimator in ESTIMATORS.values():
        preset = next(algorithm for algorithm in ALGORITHMS.values() if algorithm.estimator == estimator.name)
        defaults = presets.advantage_defaults(preset, estimator.name)
        options = _defaults(AdvantageSpec, (*estimator.options, "whiten"), defaults)
        example = example_of(
            {"name": preset.name, "advantage": {"estimator": estimator.name, **options}},
            needs_agents=estimator.name == "MARFT",
        )
        yield _explained(result["ADVANTAGES", estimator.name], estimator.name, options, example)


def _losses(result: Mapping[Place, Explanation]) -> Iterator[CatalogueEntry]:
    for loss in LOSSES.values():
        preset = next(
            (algorithm for algorithm in ALGORITHMS.values() if algorithm.loss == loss.name), ALGORITHMS["GRPO"]
        )
        defaults = presets.loss_defaults(preset, loss.name)
        options = _defaults(LossSpec, (*loss.options, "aggregation"), defaults)
        example = example_of({"name": preset.name, "loss": {"name": loss.name, **options}})
        yield _explained(result["POLICY_LOSSES", loss.name], loss.name, options, example)


def _kl(result: Mapping[Place, Explanation]) -> Iterator[CatalogueEntry]:
    options = {"coefficient": 0.001, "placement": "Loss"}
    for name in KL_ESTIMATORS:
        example = example_of({"name": "GRPO", "kl": {"estimator": name, **options}})
        yield _explained(result["KL_ESTIMATORS", name], name, options, example)


def _explained(
    explained: Explanation, name: str, options: Mapping[str, Any], example: Mapping[str, Any]
) -> CatalogueEntry:
    return CatalogueEntry(name, explained.sentence, explained.formula, explained.papers, _shown(options), example)


def _of_note(note: Note) -> CatalogueEntry:
    return CatalogueEntry(note.name, note.what, note.formula, note.papers, _shown(note.options), note.example)


def _defaults(model: type[ApiModel], names: Iterable[str], defaults: presets.Options) -> dict[str, Any]:
    fields = model.model_fields
    return {
        _alias(model, name): defaults.get(name, fields[name].get_default(call_default_factory=True)) for name in names
    }


def _alias(model: type[ApiModel], name: str) -> str:
    return model.model_fields[name].alias or name


def _shown(options: Mapping[str, Any]) -> str:
    return ", ".join(f"`{name}: {_plain(value)}`" for name, value in options.items())


def _plain(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True).removesuffix("\n...\n").strip()


def _section(title: str, entries: Iterable[CatalogueEntry]) -> str:
    entries = list(entries)
    lines = [f"## {title}", "", "| name | what | formula | options and defaults | paper |", "|---|---|---|---|---|"]
    lines += [_row(entry) for entry in entries]
    for entry in entries:
        text = yaml.safe_dump(entry.example, sort_keys=False, default_flow_style=None, width=100).rstrip()
        lines += ["", f"`{entry.name}`", "", "```yaml", text, "```"]
    return "\n".join([*lines, ""])


def _row(entry: CatalogueEntry) -> str:
    formula = "<br>".join(f"`{_as_in_yaml(line)}`" for line in entry.formula)
    cells = (f"`{entry.name}`", entry.what, formula, entry.options, "<br>".join(entry.papers))
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _as_in_yaml(line: str) -> str:
    """A line of a formula with options spelt as in a job."""
    return re.sub(r"\w+", lambda word: _ALIASES.get(word[0], word[0]), line.replace("`", ""))


_ALIASES = {name: _alias(model, name) for model in (AdvantageSpec, LossSpec) for name in model.model_fields}


if __name__ == "__main__":
    sys.stdout.write(algorithms_text(Path(sys.argv[1])))
