"""The code of README.md and docs/: each block runs, or says why not; commands, fields and options are those there are.

Commands themselves are run by worker/rljob_worker/tests/test_docs_commands.py.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tomllib
from importlib.util import find_spec

import click
import jsonschema
import pytest
import yaml

from rljob_api import parse_job
from rljob_api.tests.builders import SMALL
from rljob_worker.cli.app import app
from testing.code_blocks import CHECKOUT, LANGUAGES, PAGES, blocks_in, blocks_of, indented_blocks

SETTINGS = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
PROJECT = SETTINGS["project"]
TARGETS = set(re.findall(r"^([\w-]+):", (CHECKOUT / "Makefile").read_text(), re.MULTILINE))
VALUES = json.loads((CHECKOUT / "charts/rljob/values.schema.json").read_text())
WHOLE_JOBS = {"docs/python.md", "docs/from-other-trainers.md"}
"""Pages whose Python runs jobs: in the slow tier."""

a_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(CHECKOUT).as_posix())


def of_language(*languages):
    blocks = [block for page in PAGES for block in blocks_of(page, *languages)]
    return pytest.mark.parametrize("block", blocks, ids=str)


def test_the_rooms_of_the_architecture_are_the_layers_of_the_import_contracts():
    (picture,) = re.findall(
        r"```text\n(rljob_worker\n.*?)```", (CHECKOUT / "docs/architecture.md").read_text(), re.DOTALL
    )
    contracts = SETTINGS["tool"]["importlinter"]["contracts"]
    layers = {item["containers"][0]: item["layers"] for item in contracts if "containers" in item}
    for section in picture.split("\n\n"):
        package, _, rows = section.partition("\n")
        drawn = re.sub(r",\n +", ", ", rows).strip().splitlines()
        rooms = [re.split(" {2,}", row.strip())[0].split(", ") for row in drawn]
        assert rooms == [layer.split(" | ") for layer in layers[package]], package


@a_page
def test_every_block_has_a_fence_and_a_language(page):
    assert indented_blocks(page.read_text()) == []
    assert [str(block) for block in blocks_of(page) if block.language not in LANGUAGES] == []


def test_a_reason_belongs_to_the_block_behind_it():
    page = "<!-- not run: needs a cluster -->\n```sh\nkubectl\n```\n\n- a\n\n    ```sh\n    ls\n    ```\n"
    assert [(block.line, block.text, block.not_run) for block in blocks_in(page, "a.md")] == [
        (3, "kubectl\n", "needs a cluster"),
        (9, "ls\n", ""),
    ]
    (block,) = blocks_in("<!-- tried with: a.b=[1, 2], c[0].d=3 -->\n```yaml\nx: 1\n```", "a.md")
    assert block.tried_with == ("a.b=[1, 2]", "c[0].d=3")
    with pytest.raises(ValueError, match="a.md:1: a block without an end"):
        list(blocks_in("```sh\nls\n", "a.md"))
    assert indented_blocks("a\n\n    ls\n\n- b\n\n    ls\n\n```sh\n\n    ls\n```\n") == [3]


def files_of_tests():
    folders = ("tests", "client", "crds", "operator", "worker", "e2e")
    return (path for folder in folders for path in (CHECKOUT / folder).rglob("test_*.py"))


def test_a_test_that_a_reason_names_is_there():
    named = {name for page in PAGES for block in blocks_of(page) for name in re.findall(r"test_\w+\.py", block.not_run)}
    assert named <= {path.name for path in files_of_tests()}


def test_the_quick_start_of_trl_is_at_most_fifteen_lines_here():
    (block,) = blocks_of(CHECKOUT / "docs/from-other-trainers.md", "python")
    assert "rljob.train(" in block.text and len([line for line in block.text.splitlines() if line]) <= 15


@of_language("json")
def test_json_can_be_read(block):
    json.loads(block.text)


@of_language("toml")
def test_toml_can_be_read(block):
    tomllib.loads(block.text)


@of_language("yaml")
def test_yaml_is_a_job_a_part_of_one_or_values_of_the_chart(block):
    content = yaml.safe_load(block.text)
    if block.not_run:
        return
    if set(content) <= set(VALUES["properties"]):
        jsonschema.validate(content, VALUES)
    elif "kind" in content:
        parse_job(block.text)
    else:
        spec = {"data": {"batchSize": 128}} | content.get("spec", content)
        parse_job(yaml.safe_dump(merged(yaml.safe_load(SMALL), {"spec": spec})), block.tried_with)


def merged(base, part):
    """A mapping with the fields of another one in place of its own, at every depth."""
    if not (isinstance(base, dict) and isinstance(part, dict)):
        return part
    return base | {name: merged(base.get(name), value) for name, value in part.items()}


@of_language("sh", "console")
def test_commands_options_targets_and_extras_are_those_there_are(block):
    for words in commands(block.text):
        program, arguments = words[0].rpartition("/")[2], words[1:]
        if program == "rljob":
            check_arguments(app, arguments)
        elif program == "make":
            assert {word for word in arguments if "=" not in word} <= TARGETS
        elif program == "python" and arguments[0] == "-m":
            assert find_spec(arguments[1])
        extras = re.findall(r"rljob\S*\[([\w,-]+)\]", " ".join(words))
        assert {extra for part in extras for extra in part.split(",")} <= set(PROJECT["optional-dependencies"])


def commands(text):
    """The words of each command of a shell block, without variables before it and what follows | or >."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(re.sub(r"^\$ |[|>].*", "", line), comments=True)
        while words and re.match(r"\w+=", words[0]):
            words = words[1:]
        if words:
            yield words


def check_arguments(command, arguments):
    """Raises click.UsageError for an option or subcommand that does not exist."""
    context = click.Context(command)
    if isinstance(command, click.Group):
        name, found, rest = command.resolve_command(context, list(arguments))
        return check_arguments(found, rest)
    command.make_parser(context).parse_args(list(arguments))


@a_page
def test_python_has_no_name_that_is_nowhere(page):
    blocks = blocks_of(page, "python")
    code = "\n".join(block.text for block in blocks if not block.not_run)
    command = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--isolated",
        "--select",
        "F821",
        "--output-format",
        "concise",
        "-",
    ]
    done = subprocess.run(command, input=code, capture_output=True, text=True) if code else None
    assert done is None or done.returncode == 0, done.stdout


@a_page
def test_python_runs(page, tmp_path, monkeypatch):
    """Blocks of a page one after the other, in a folder with the files that they are."""
    blocks = [block for block in blocks_of(page, "python") if not block.not_run]
    if page.relative_to(CHECKOUT).as_posix() in WHOLE_JOBS:
        return
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    names = {}
    for block in blocks:
        if block.file:
            (tmp_path / block.file).write_text(block.text)
        exec(compile(block.text, str(block), "exec"), names)
    for block in blocks:
        sys.modules.pop(block.file.removesuffix(".py"), None)
