"""The names of `rljob_api` that are looked up on first use."""

import ast
from importlib import import_module
from pathlib import Path

import pytest

import rljob_api


def test_each_public_name_is_what_type_checkers_are_shown():
    shown = {
        alias.name: getattr(import_module(node.module), alias.name)
        for node in ast.walk(ast.parse(Path(rljob_api.__file__).read_text()))
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith("rljob_api.")
        for alias in node.names
    }
    assert {name: getattr(rljob_api, name) for name in rljob_api.__all__} == shown


def test_a_name_that_is_not_public_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'rljob_api' has no attribute 'Plans'"):
        rljob_api.Plans  # noqa: B018
