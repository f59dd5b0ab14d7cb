"""The text of docs/rljob-reference.md, from the types and the catalogue: `python -m rljob_api.pages.reference`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from rljob_api.catalogue.algorithms import ALGORITHMS
from rljob_api.catalogue.profiles import DEFAULT
from rljob_api.catalogue.stages import STAGES
from rljob_api.checks.unsupported import UNBUILT
from rljob_api.loading.structure import model_in
from rljob_api.v1alpha1 import Metadata, RLJobSpec, RLJobStatus
from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_api.vocabulary.keys import API_VERSION
from rljob_api.vocabulary.model import ApiModel, field_descriptions

HEADER = f"""\
# RLJob reference

`apiVersion: {API_VERSION}`, `kind: RLJob`. Made by `make docs` from the types that check your YAML.
A field without a default must be given. A misspelt field is an error that names the nearest right spelling.
"""


def reference_text() -> str:
    """The whole page, in Markdown."""
    sections = [HEADER, *_sections("metadata", Metadata), *_sections("spec", RLJobSpec)]
    sections += [_stages(), _algorithms(), _profiles(), _exit_codes(), *_sections("status", RLJobStatus)]
    return "\n".join(sections)


def _sections(path: str, model: type[ApiModel]) -> Iterator[str]:
    """A section for a model, then one for each model inside it."""
    texts = field_descriptions(model)
    lines = [f"## `{path}`", "", *(model.__doc__ or "").strip().splitlines()[:1], ""]
    inside: list[tuple[str, type[ApiModel]]] = []
    for name, field in model.model_fields.items():
        lines += [
            f"- **`{field.alias}`** ({_type_of(field.annotation)}{_default_of(field)})",
            f"  {_joined(texts[name])}{_unbuilt(f'{path}.{field.alias}')}",
        ]
        if (below := model_in(field.annotation)) is not None:
            inside.append((f"{path}.{field.alias}{'[]' if _is_list(field.annotation) else ''}", below))
    yield "\n".join([*lines, ""])
    for below_path, below in inside:
        yield from _sections(below_path, below)


def _unbuilt(path: str) -> str:
    values = UNBUILT.get(path.removeprefix("spec."))
    return "" if values is None else f" **Not built yet:** {values}; a job that asks for it is refused."


def _type_of(annotation: Any) -> str:
    """A type in the terms of YAML."""
    arguments = [arg for arg in get_args(annotation) if arg not in (type(None), Ellipsis)]
    if get_origin(annotation) is Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if _is_list(annotation):
        return f"list of {_type_of(arguments[0])}"
    if annotation in _TYPE_NAMES:
        return _TYPE_NAMES[annotation]
    if isinstance(annotation, type) and issubclass(annotation, ApiModel):
        return "fields below"
    if get_origin(annotation) is dict:
        return "mapping"
    return _type_of(arguments[0])


_TYPE_NAMES = {int: "whole number", float: "number", str: "text", bool: "true or false", Any: "anything"}


def _default_of(field: FieldInfo) -> str:
    if field.is_required():
        return ", required"
    if field.default is PydanticUndefined or field.default is None or isinstance(field.default, ApiModel):
        return ""
    return f", default `{json.dumps(_plain(field.default))}`"


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value.model_dump(mode="json", by_alias=True, exclude_defaults=True) if isinstance(value, ApiModel) else value


def _is_list(annotation: Any) -> bool:
    return get_origin(annotation) is tuple


def _joined(text: str) -> str:
    return " ".join(text.split())


def _stages() -> str:
    lines = ["## Stages of the catalogue", "", "What each reads and writes in a particular job: `rljob plan`.", ""]
    lines += ["| `run` | what it does | models | groups whole | balance |", "|---|---|---|---|---|"]
    for stage in STAGES.values():
        models = (
            "none" if stage.use == "None" else f"one, default `{stage.default_model}`" if stage.default_model else "one"
        )
        whole, balance = "yes" if stage.needs_groups else "no", "yes" if stage.can_balance else "no"
        lines.append(f"| `{stage.name}` | {stage.purpose} | {models} | {whole} | {balance} |")
    return "\n".join([*lines, ""])


def _algorithms() -> str:
    lines = ["## Algorithms", "", "| name | what it does | estimator | loss | paper |", "|---|---|---|---|---|"]
    for preset in ALGORITHMS.values():
        lines.append(
            f"| `{preset.name}` | {preset.purpose} | `{preset.estimator}` | `{preset.loss}` | {preset.paper} |"
        )
    return "\n".join([*lines, ""])


def _profiles() -> str:
    lines = ["## Accelerator profiles", "", "| profile | resource | device | collectives |", "|---|---|---|---|"]
    for profile in DEFAULT.values():
        resource = f"`{profile.resource}`" if profile.resource else "none"
        lines.append(f"| `{profile.name}` | {resource} | {profile.device} | {profile.backend} |")
    return "\n".join([*lines, ""])


def _exit_codes() -> str:
    return "\n".join(["## Exit codes", "", *(f"- `{code.value}`: {code.meaning}" for code in ExitCode), ""])


if __name__ == "__main__":
    sys.stdout.write(reference_text())
