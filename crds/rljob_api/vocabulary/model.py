"""`ApiModel`: how every type of the API is spelt, checked and described."""

from __future__ import annotations

import ast
import inspect
import sys
from functools import cache
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, Strict
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema

T = TypeVar("T")

Items = Annotated[tuple[T, ...], Strict(False)]
"""A list in YAML that is a tuple in Python, so that a frozen model is frozen all the way down."""


PartName = Annotated[str, Field(min_length=1, max_length=63)]
"""Name of a part that is built in or that an installed package brings: the catalogue lists these, not the schema."""

MAX_TEXT_LENGTH = 1024
"""Characters of a text that has no bound of its own.  An API server runs rules only over what is bounded."""


class ApiModel(BaseModel):
    """Base of every API type: camelCase outside, snake_case inside, frozen, and closed to unknown fields.

    Types are strict (`"8"` is not a number, `1` is not a boolean) because the API server is, so one YAML means
    the same on a laptop and on a cluster. The string under a field is its description, in the JSON schema
    as well as in the reference.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        str_max_length=MAX_TEXT_LENGTH,
        protected_namespaces=(),
    )

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        for name, text in field_descriptions(cls).items():
            if (alias := cls.model_fields[name].alias or name) in properties:
                properties[alias]["description"] = text
        return schema

    def to_json(self) -> dict[str, Any]:
        """This value as JSON-compatible Python, spelt as in YAML."""
        return self.model_dump(mode="json", by_alias=True)


def field_descriptions(model: type[ApiModel]) -> dict[str, str]:
    """The docstring under each field of `model`, by Python name, inherited ones included.

    Read from the source on demand: pydantic's own `use_attribute_docstrings` would parse every file while
    it is imported.
    """
    texts: dict[str, str] = {}
    for cls in reversed(model.__mro__):
        if issubclass(cls, ApiModel):
            texts |= _docstrings_of(cls.__module__).get(cls.__name__, {})
    return {name: text for name, text in texts.items() if name in model.model_fields}


@cache
def _docstrings_of(module: str) -> dict[str, dict[str, str]]:
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: dict(_attribute_docstrings(node)) for node in tree.body if isinstance(node, ast.ClassDef)}


def _attribute_docstrings(node: ast.ClassDef) -> list[tuple[str, str]]:
    result = []
    for field, below in zip(node.body, node.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
            and isinstance(below.value.value, str)
        ):
            result.append((field.target.id, inspect.cleandoc(below.value.value)))
    return result
