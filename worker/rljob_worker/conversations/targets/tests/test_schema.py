"""Schemas of Python functions, and arguments that break them."""

from __future__ import annotations

from typing import Any

import pytest

from rljob_worker.conversations.targets.schema import describe, schema_fault
from rljob_worker.errors import InvalidJob

MODULE = "rljob_worker.conversations.targets.tests.user_functions"


def parameters_of(name: str, options: dict[str, Any] | None = None) -> dict[str, Any]:
    return dict(describe(f"{MODULE}:{name}", options)["schema"]["function"]["parameters"])


def test_a_function_with_types_and_a_docstring_has_a_schema() -> None:
    described = describe(f"{MODULE}:search", {"index": "books"}, "find")
    assert described == {
        "method": None,
        "sees": False,
        "schema": {
            "type": "function",
            "function": {
                "name": "find",
                "description": "Find pages.\n\nMore than a line.",
                "parameters": {
                    "type": "object",
                    "properties": {
                        "text": {"type": "string", "description": "words to look for, best few"},
                        "most": {"type": "integer", "description": "pages at most", "default": 5},
                        "kind": {"enum": ["web", "news"], "default": "web"},
                    },
                    "required": ["text"],
                    "additionalProperties": False,
                },
            },
        },
    }


def test_types_within_types_are_described() -> None:
    parameters = parameters_of("go")
    place = {"x": {"type": "number"}, "name": {"type": "string"}}
    assert parameters["properties"] == {
        "place": {
            "type": "object",
            "properties": place,
            "required": ["x"],
            "additionalProperties": False,
            "description": "where to",
        },
        "tags": {
            "anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}],
            "description": "why",
            "default": None,
        },
        "options": {
            "anyOf": [{"type": "object", "additionalProperties": {"type": "boolean"}}, {"type": "null"}],
            "default": None,
        },
    }
    assert parameters["required"] == ["place"]


def test_the_key_of_a_call_is_not_the_models_to_give() -> None:
    assert parameters_of("noted")["properties"] == {"a": {"type": "integer", "description": "the first"}}


def test_the_pictures_of_the_prompt_are_not_the_models_to_give() -> None:
    assert list(parameters_of("zoom")["properties"]) == ["left"]
    assert [describe(f"{MODULE}:{name}")["sees"] for name in ("zoom", "Magnifier", "noted")] == [True, True, False]


def test_a_class_is_called_by_its_method() -> None:
    described = describe(f"{MODULE}:Counter", {"start": 3})
    assert described["method"] == "call"
    function = described["schema"]["function"]
    assert (function["name"], function["description"]) == ("counter", "Counts from where it began.")
    assert list(function["parameters"]["properties"]) == ["by"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("untyped", "the parameter 'a' has no type; write one of str, int"),
        ("of_points", "the parameter 'a' has the type Point, which a model cannot write; write one of"),
        ("of_many", r"\*a: 'int' cannot be given by name"),
        ("of_unknown", "its types cannot be read: name 'Missing' is not defined"),
        ("NotCallable", "has no method `call`, which is what the model calls"),
        ("number", "is a int, not a function or class"),
        ("absent", "does not exist"),
    ],
)
def test_what_has_no_schema_is_refused_by_name(name: str, message: str) -> None:
    with pytest.raises(InvalidJob, match=message) as error:
        describe(f"{MODULE}:{name}")
    assert str(error.value).startswith(f'tool "{MODULE}:{name}": ')


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({"text": "a"}, None),
        ({"text": "a", "most": 2, "kind": "news"}, None),
        ({}, "the arguments: 'text' is missing"),
        ({"text": 3}, "the arguments: text: 3 is not of the type string"),
        ({"text": "a", "most": "2"}, 'the arguments: most: "2" is not of the type integer'),
        ({"text": "a", "most": True}, "the arguments: most: true is not of the type integer"),
        ({"text": "a", "most": 2.0}, None),
        ({"text": "a", "most": 2.5}, "the arguments: most: 2.5 is not of the type integer"),
        ({"text": "a", "kind": "x"}, 'the arguments: kind: "x" is none of "web", "news"'),
        ({"text": "a", "x": 1}, "the arguments: there is no 'x'; there are 'text', 'most', 'kind'"),
    ],
)
def test_arguments_are_compared_with_the_schema(arguments: dict[str, Any], fault: str | None) -> None:
    assert schema_fault(describe(f"{MODULE}:search", {"index": ""})["schema"], arguments) == fault


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({"place": {"x": 1, "name": "a"}, "tags": None, "options": {"a": True}}, None),
        ({"place": {"name": "a"}}, "the arguments: place: 'x' is missing"),
        ({"place": {"x": 1}, "tags": ["a", 2]}, "the arguments: tags[1]: 2 is not of the type string"),
        ({"place": {"x": 1}, "tags": 5}, "the arguments: tags: 5 is none of what may be here"),
        ({"place": {"x": 1}, "options": {"a": 1}}, "the arguments: options: a: 1 is not of the type boolean"),
    ],
)
def test_faults_name_the_place(arguments: dict[str, Any], fault: str | None) -> None:
    assert schema_fault(describe(f"{MODULE}:go")["schema"], arguments) == fault


@pytest.mark.parametrize(
    ("schema", "value", "fault"),
    [
        ({"minimum": 2}, 1, "the arguments: a: is 1, less than 2"),
        ({"maximum": 2}, 3, "the arguments: a: is 3, more than 2"),
        ({"minLength": 2}, "a", "the arguments: a: has a length of 1, less than 2"),
        ({"maxItems": 1}, [1, 2], "the arguments: a: has a length of 2, more than 1"),
        ({"pattern": "^a$"}, "b", 'the arguments: a: "b" does not match ^a$'),
        # what another language allows is left to the server
        ({"pattern": "(?<!"}, "b", None),
        ({"const": 1}, True, "the arguments: a: true is none of 1"),
        ({"$ref": "#/$defs/N"}, "b", 'the arguments: a: "b" is not of the type integer'),
        ({"$ref": "other.json#/N"}, "b", None),
        ({"$ref": "#/properties/a"}, "b", None),
        ({"allOf": [{"type": "integer"}, {"minimum": 2}]}, 1, "the arguments: a: is 1, less than 2"),
        ({"oneOf": [{"type": "string"}]}, 1, "the arguments: a: 1 is none of what may be here"),
        ({"type": ["string", "null"]}, None, None),
        ({"unknown": 1}, 1, None),
        (False, 1, "the arguments: a: nothing may be here"),
    ],
)
def test_schemas_of_servers_have_other_keywords(schema: Any, value: Any, fault: str | None) -> None:
    parameters = {"type": "object", "properties": {"a": schema}, "$defs": {"N": {"type": "integer"}}}
    assert schema_fault(parameters, {"a": value}) == fault


def test_a_long_value_is_not_repeated_whole() -> None:
    fault = schema_fault({"properties": {"a": {"type": "integer"}}}, {"a": "x" * 5000})
    assert fault is not None and len(fault) < 200
