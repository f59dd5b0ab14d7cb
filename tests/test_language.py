"""The language of the shipped code: one meaning for each class name, words of the field, docstrings that stand alone.

`docs/contributing.md` has the rules in words, `docs/architecture.md` the vocabulary.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from mutation.table import shipped_modules

CHECKOUT = Path(__file__).parents[1]
PACKAGES = {"rljob", "rljob_api", "rljob_operator", "rljob_worker"}

SHARED_CLASS_NAMES: Mapping[str, str] = {}
"""Public class names that may be defined more than once, each with the reason."""
MAX_SHARED_CLASS_NAMES = 8

BANNED_WORDS = frozenset(
    {
        "account",
        "agent",
        "appearance",
        "board",
        "circle",
        "deeds",
        "duty",
        "family",
        "glance",
        "household",
        "inbox",
        "lane",
        "lanes",
        "leaving",
        "patience",
        "questions",
        "reach",
        "roll",
        "seat",
        "sides",
        "squeezing",
        "station",
        "surroundings",
        "surveying",
        "talk",
        "talks",
        "tally",
        "telling",
        "told",
        "trouble",
        "wherefrom",
        "whom",
    }
)
ALLOWED_WORDS: Mapping[str, Mapping[str, str]] = {
    "account": {
        "rljob_operator": "a Kubernetes ServiceAccount",
        "rljob_worker.metrics.trackers": "an account of a tracker's server",
        "rljob_worker.storage": "a storage account of a cloud",
    },
    "agent": {
        "rljob.server": "the User-Agent of HTTP",
        "rljob_api": "a speaker of a conversation",
        "rljob_operator.cluster": "the User-Agent of HTTP",
        "rljob_operator.manifests.serving": "the agent that Ray runs on a node",
        "rljob_worker.algorithms": "a speaker of a conversation",
        "rljob_worker.endpoint": "a program that plays a trajectory",
        "rljob_worker.cli.samples": "a speaker of a conversation",
        "rljob_worker.conversations": "a speaker of a conversation",
        "rljob_worker.engines.rollout": "a speaker of a conversation",
        "rljob_worker.metrics": "a speaker of a conversation",
        "rljob_worker.rewards": "a speaker of a conversation",
        "rljob_worker.run_page": "a speaker of a conversation",
        "rljob_worker.runtime": "a speaker of a conversation",
        "rljob_worker.stages": "a speaker of a conversation",
        "rljob_worker.tiny": "a speaker of a conversation",
        "rljob_worker.batch.trajectories": "a speaker of a conversation",
        "rljob_worker.services": "the agent that Ray runs on a node",
    },
    "board": {"rljob_worker.metrics.trackers": "TensorBoard"},
    "family": {
        "rljob_api.memory": "a family of model architectures",
        "rljob_api.planning": "a family of model architectures",
        "rljob_operator.reporting.job_metrics": "a metric family of Prometheus",
        "rljob_worker.engines.megatron": "a family of model architectures",
        "rljob_worker.engines.models": "a family of model architectures",
        "rljob_worker.launcher.endpoint": "a metric family of Prometheus",
        "rljob_worker.metrics.names": "a metric family of Prometheus",
        "rljob_worker.services.models": "a family of model architectures",
    },
    "questions": {"rljob_worker.tiny": "the word problems of the tiny data set"},
}
"""By word: packages or modules that may use it, each with the reason."""

BANNED_MODULES = frozenset(
    {"any_gang", "appearance", "becoming", "kept", "of_job", "of_tokens", "own", "surroundings", "told"}
)
"""As whole names: they say nothing about the content of a module."""

BANNED_BEGINNINGS = ("Of ", "The same", "Likewise")
"""Docstrings that refer to their neighbour."""

VAGUE_VARIABLES = frozenset({"each", "found", "told"})
MAX_VAGUE_VARIABLES = 49
"""Bindings of these names in all packages together."""

Nodes = Sequence[ast.AST]
"""The nodes of a module, itself first."""
Classes = Sequence[tuple[str, int]]
"""Name and line of each public class of a module."""

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def test_the_shipped_code_keeps_the_language() -> None:
    """All rules at once, because parsing every module takes seconds, and tests of one file run in several processes.
    No module's nodes stay: with those of all of them the garbage collector takes three times as long as parsing."""
    problems: list[str] = []
    vague: list[str] = []
    classes: dict[str, Classes] = {}
    for module, path in shipped_modules(CHECKOUT).items():
        nodes = nodes_of((CHECKOUT / path).read_text())
        problems += problems_of(module, nodes)
        vague += vague_variables(module, nodes)
        classes[module] = public_classes(nodes)
    assert len(classes) > 500
    assert [*problems, *duplicate_classes(classes)] == []
    assert len(vague) <= MAX_VAGUE_VARIABLES, vague


def test_all_packages_are_read() -> None:
    modules = list(shipped_modules(CHECKOUT))
    assert {module.split(".")[0] for module in modules} == PACKAGES
    assert "rljob_worker.runtime.worker" in modules and "rljob_worker.runtime" in modules
    assert not any("tests" in module.split(".") for module in modules)


def test_exceptions_are_few_and_about_what_exists() -> None:
    modules = list(shipped_modules(CHECKOUT))
    prefixes = {prefix for rooms in ALLOWED_WORDS.values() for prefix in rooms}
    assert [prefix for prefix in prefixes if not any(is_within(module, prefix) for module in modules)] == []
    assert set(ALLOWED_WORDS) <= BANNED_WORDS
    assert len(SHARED_CLASS_NAMES) <= MAX_SHARED_CLASS_NAMES


def test_a_class_name_of_two_modules_is_a_problem_but_a_private_one_is_not() -> None:
    modules = {
        "rljob.a": public_classes(nodes_of("class Layout: ...\nclass _Row: ...\nclass Shape: ...")),
        "rljob_worker.b": public_classes(nodes_of("class Layout: ...\nclass _Row: ...")),
    }
    assert duplicate_classes(modules) == ["class Layout is defined in rljob.a:1, rljob_worker.b:1"]
    assert duplicate_classes(modules, {"Layout": "one is generated"}) == []


def test_a_class_name_twice_in_one_module_is_a_problem_also_where_it_is_nested() -> None:
    nodes = nodes_of("class Shape: ...\nclass Mesh:\n    class Shape: ...")
    assert duplicate_classes({"rljob.a": public_classes(nodes)}) == ["class Shape is defined in rljob.a:1, rljob.a:3"]


def test_banned_words_are_noticed_in_every_kind_of_identifier() -> None:
    """Functions, classes, arguments, variables, attributes, fields, names of imports and of exceptions."""
    lines = [
        "def take_seat(): ...",
        "async def roll_call(): ...",
        "class HostDuty: ...",
        "def f(*, patience_seconds=1): ...",
        "def f(*lanes, **whom): ...",
        "inbox = []",
        "self.inbox: list = []",
        "for tally in (): ...",
        "import socket as talk",
        "from socket import socket as station",
        "try: ...\nexcept OSError as trouble: ...",
        "if (glance := 1): ...",
        "with open('x') as household: ...",
        "lambda circle: 1",
    ]
    assert [line for line in lines if not list(banned_words("rljob.a", nodes_of(line)))] == []


def test_a_banned_word_is_named_with_its_place() -> None:
    nodes = nodes_of("import os\n\nclass HTTPInbox: ...")
    assert list(banned_words("rljob.a", nodes)) == ["rljob.a:3: HTTPInbox: another word for inbox"]


def test_words_count_as_a_whole_and_only_where_a_name_is_made() -> None:
    lines = [
        "rollout = enroll(seating)",
        "TensorFamilies = 1",
        "print(whom)",
        "'a seat'",
        "tensorboard = 1",
        "x.talk()",
    ]
    assert [line for line in lines if list(banned_words("rljob.a", nodes_of(line)))] == []


def test_a_word_may_be_allowed_in_a_room_and_what_is_below_it() -> None:
    nodes = nodes_of("family = 1")
    allowed = {"family": {"rljob_worker.engines": "of models"}}
    assert list(banned_words("rljob_worker.engines.models", nodes, allowed)) == []
    assert len(list(banned_words("rljob_worker.engines_of_others", nodes, allowed))) == 1
    assert len(list(banned_words("rljob_worker.process", nodes, allowed))) == 1


def test_names_of_modules_and_packages_are_held_to_the_words_too() -> None:
    assert list(banned_module_names("rljob_worker.stages.kept")) == ["rljob_worker.stages.kept: rename the module kept"]
    assert list(banned_module_names("rljob_worker.seat_map.x")) == [
        "rljob_worker.seat_map.x: seat_map: another word for seat"
    ]
    assert list(banned_module_names("rljob_worker.stages.kept_rows")) == []


def test_a_docstring_may_not_begin_with_its_neighbour() -> None:
    source = '''
    """A module."""

    class Rows:
        """Of a worker."""

    def f():
        """The same for columns."""

    async def g():
        """Likewise."""

    def h():
        """Offsets of rows."""

    def i():
        """The sameness of rows."""
    '''
    assert list(docstring_problems("rljob.a", parsed(source))) == [
        "rljob.a:4: the docstring begins with 'Of'",
        "rljob.a:7: the docstring begins with 'The same'",
        "rljob.a:10: the docstring begins with 'Likewise'",
    ]


def test_a_docstring_of_an_attribute_is_a_docstring() -> None:
    nodes = nodes_of('"""A module."""\nLIMIT = 3\n"""Of a host."""\n')
    assert list(docstring_problems("rljob.a", nodes)) == ["rljob.a:3: the docstring begins with 'Of'"]


def test_a_module_has_a_docstring_unless_it_is_empty() -> None:
    assert list(docstring_problems("rljob.a", nodes_of("x = 1"))) == ["rljob.a:1: no module docstring"]
    assert list(docstring_problems("rljob.a", nodes_of(""))) == []


def test_vague_variables_are_counted_where_they_are_bound() -> None:
    nodes = nodes_of("found = [each for each in told]\ndef f(told): return told\nx.found = 1")
    assert sorted(vague_variables("rljob.a", nodes)) == ["rljob.a:1: each", "rljob.a:1: found", "rljob.a:2: told"]


def nodes_of(source: str) -> Nodes:
    """All nodes, the module first: every rule goes over them, and walking takes as long as parsing."""
    return list(ast.walk(ast.parse(source)))


def problems_of(module: str, nodes: Nodes) -> Iterator[str]:
    yield from banned_module_names(module)
    yield from banned_words(module, nodes)
    yield from docstring_problems(module, nodes)


def public_classes(nodes: Nodes) -> Classes:
    return [(node.name, node.lineno) for node in nodes if isinstance(node, ast.ClassDef) and node.name[0] != "_"]


def duplicate_classes(modules: Mapping[str, Classes], shared: Mapping[str, str] = SHARED_CLASS_NAMES) -> list[str]:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for module, classes in modules.items():
        for name, line in classes:
            places[name].append(f"{module}:{line}")
    return [
        f"class {name} is defined in {', '.join(defined)}"
        for name, defined in sorted(places.items())
        if len(defined) > 1 and name not in shared
    ]


def banned_words(module: str, nodes: Nodes, allowed: Mapping[str, Mapping[str, str]] = ALLOWED_WORDS) -> Iterator[str]:
    """Identifiers with a banned word, each with its place."""
    for line, name in identifiers(nodes):
        for word in words_of(name) & BANNED_WORDS:
            if not any(is_within(module, room) for room in allowed.get(word, {})):
                yield f"{module}:{line}: {name}: another word for {word}"


def banned_module_names(module: str) -> Iterator[str]:
    for part in module.split("."):
        if part in BANNED_MODULES:
            yield f"{module}: rename the module {part}"
            continue
        for word in words_of(part) & BANNED_WORDS:
            if not any(is_within(module, room) for room in ALLOWED_WORDS.get(word, {})):
                yield f"{module}: {part}: another word for {word}"


def docstring_problems(module: str, nodes: Nodes) -> Iterator[str]:
    root = nodes[0]
    assert isinstance(root, ast.Module)
    if root.body and ast.get_docstring(root) is None:
        yield f"{module}:1: no module docstring"
    for line, text in docstrings(nodes):
        for beginning in BANNED_BEGINNINGS:
            if re.match(rf"{beginning.strip()}\b", text):
                yield f"{module}:{line}: the docstring begins with {beginning.strip()!r}"


def vague_variables(module: str, nodes: Nodes) -> list[str]:
    """Bindings of variables and arguments; attributes are no variables."""
    bound = ((line, name) for line, name in variables(nodes) if name in VAGUE_VARIABLES)
    return [f"{module}:{line}: {name}" for line, name in bound]


def identifiers(nodes: Nodes) -> Iterator[tuple[int, str]]:
    """Line and name of everything that the module names: definitions, variables, assigned attributes."""
    yield from variables(nodes)
    for node in nodes:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def variables(nodes: Nodes) -> Iterator[tuple[int, str]]:
    for node in nodes:
        if isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.alias) and node.asname:
            yield node.lineno, node.asname
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            yield node.lineno, node.name


def docstrings(nodes: Nodes) -> Iterator[tuple[int, str]]:
    """Line and text of every string that stands as a statement: docstrings, and descriptions under attributes."""
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value.lstrip()


def words_of(identifier: str) -> set[str]:
    """`HTTPInbox_of` -> http, inbox, of."""
    return {word.lower() for word in _WORDS.findall(identifier)}


def is_within(module: str, prefix: str) -> bool:
    return module == prefix or module.startswith(f"{prefix}.")


def parsed(source: str) -> Nodes:
    return nodes_of("\n".join(line[4:] for line in source.strip("\n").splitlines()))
