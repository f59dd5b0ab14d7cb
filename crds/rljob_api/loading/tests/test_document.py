"""Tests of reading YAML: scalars, line numbers, syntax errors."""

import json
from itertools import pairwise

import pytest
import yaml

from rljob_api.loading.document import depth_problem, read_document, read_value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        ("1.0e-6", 1e-6),
        ("-3", -3),
        ("010", 10),
        ("0x10", 16),
        ("1:30", "1:30"),
        ("no", "no"),
        ("on", "on"),
        ("true", True),
        ("null", None),
        ("~", None),
        ("", None),
        ("2024-01-01", "2024-01-01"),
        ("16Gi", "16Gi"),
        (".5", 0.5),
        ("-.inf", float("-inf")),
        ("'8'", "8"),
        ("[1, {a: b}]", [1, {"a": "b"}]),
    ],
)
def test_scalars_follow_yaml_1_2(text, value):
    result = read_value(text)
    assert result == value
    assert type(result) is type(value)


def test_lines_of_fields_and_of_what_is_inside_them():
    document = read_document("a:\n  b:\n    - x: 1\n    - y: 2\n")
    assert document.line_of("a.b[1].y") == 4
    assert document.line_of("a.b[1].missing") == 4
    assert document.line_of("a.c") == 1
    assert document.line_of("z") is None


def test_a_duplicate_key_names_both_lines():
    (problem,) = read_document("a: 1\nb: 2\na: 3\n").problems
    assert problem.path == "a"
    assert problem.line == 3
    assert "line 1" in problem.message


def test_a_syntax_error_names_its_line():
    (problem,) = read_document("a:\n  b: [1, 2\nc: 3\n").problems
    assert problem.line == 3
    assert "not YAML" in problem.message


@pytest.mark.parametrize("text", ["a:\n\tb: 1\n", "a:\n\t- b\n", "a: 1\n\tb: 2\n", "a: |\n\tb\n"])
def test_a_tab_is_called_a_tab(text):
    (problem,) = read_document(text).problems
    assert (problem.found, problem.fix) == ("line 2, column 1", "Write spaces in its place.")
    assert "a tab, and only spaces indent" in problem.message


def test_what_cannot_be_printed_has_no_place():
    (problem,) = read_document("a: \x00").problems
    assert "not YAML" in problem.message and problem.line is None


@pytest.mark.parametrize(
    ("text", "result"), [("a: 1\n---\nb: 2\n", "2 documents"), ("", "0 documents"), ("# hi", "0 documents")]
)
def test_a_file_holds_one_document(text, result):
    (problem,) = read_document(text).problems
    assert problem.found == result


def test_an_empty_second_document_is_no_document():
    assert read_document("---\na: 1\n---\n").problems == []


def test_unsupported_yaml_is_named():
    (tag,) = read_document("a: !!python/name:os.system ''").problems
    assert "tag" in tag.message
    (recursive,) = read_document("a: &x [*x]").problems
    assert "alias" in recursive.message
    (key,) = read_document("? [1]\n: 2").problems
    assert "key" in key.message


def test_an_alias_means_what_it_names():
    assert read_document("a: &x {b: 1}\nc: *x\n").value == {"a": {"b": 1}, "c": {"b": 1}}


@pytest.mark.parametrize("depth", [200, 50_000])
def test_what_is_nested_too_deep_is_a_problem(depth):
    (problem,) = read_document("a: " + "[" * depth + "]" * depth).problems
    assert "more than 100 deep" in problem.message
    with pytest.raises(yaml.YAMLError):
        read_value("[" * depth + "]" * depth)


@pytest.mark.parametrize(("depth", "is_too_deep"), [(100, False), (101, True), (50_000, True)])
def test_values_that_were_read_elsewhere_have_the_same_bound(depth, is_too_deep):
    value = []
    for _ in range(depth - 1):
        value = [value] if isinstance(value, dict) else {"a": value, "b": 1}
    assert (depth_problem(value) is not None) is is_too_deep
    if depth < 200:
        assert bool(read_document(json.dumps(value)).problems) is is_too_deep


def test_aliases_that_make_much_of_little_are_a_problem():
    # 9 ** 8 values, of 8 lines
    text = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"{name}: &{name} [{', '.join(['*' + before] * 9)}]\n" for before, name in pairwise("abcdefgh")
    )
    (problem,) = read_document(text).problems
    assert "more than 100000 values" in problem.message and problem.line is not None
