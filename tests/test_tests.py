"""What no test may do, wherever it lies: look inside what it tests, race a clock, excuse what it caught."""

import ast
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

from testing.tiers import tiers_of

CHECKOUT = Path(__file__).parents[1]
ROOMS = (
    "benchmarks",
    "charts",
    "client",
    "crds",
    "dockerfiles",
    "e2e",
    "examples",
    "mutation",
    "operator",
    "testing",
    "tests",
    "worker",
)
CLOCKS = {"monotonic", "perf_counter", "process_time", "time", "time_ns"}
FOR_EVER_SECONDS = 600
"""What sleeps for so long waits to be killed."""
LONGEST_WINDOW_SECONDS = 3
"""A timeout up to this may be a window whose end the test asserts. A longer one has a name: HOLD_WINDOW_SECONDS."""
TIMEOUTS = {"timeout", "timeout_seconds", "deadline_seconds", "patience_seconds"}
WAITS = {"wait": 0, "join": 0, "result": 0, "exception": 0, "settimeout": 0, "timeout": 0, "acquire": 1, "wait_for": 1}
"""Functions whose argument at this place is a timeout."""
SCALED = {"wait_until", "until", "until_phase", "until_step"}
"""Functions that scale their timeouts themselves: e2e.cluster.waiting, and what waits with it."""


def test_tests_do_nothing_that_no_test_may() -> None:
    """All rules at once: to parse every test takes seconds, and tests of one file run in several processes."""
    assert [broken for path in paths() for broken in _broken(path, ast.parse(path.read_text()))] == []


def test_each_test_file_is_in_one_tier() -> None:
    """Without one, no make target runs it."""
    settings = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    tiers = {name: tiers_of(name, (), settings["testpaths"]) for name in _tracked("*test_*.py")}
    assert {name: result for name, result in tiers.items() if len(result) != 1} == {}


def test_all_of_them_are_looked_at() -> None:
    names = [path.name for path in paths()]
    assert len(names) > 250 and {"test_tests.py", "fake_cluster.py", "conftest.py"} <= set(names)


def paths() -> list[Path]:
    """Every test, and what tests are made of."""
    result = (path for room in ROOMS for path in sorted((CHECKOUT / room).rglob("*.py")))
    return [path for path in result if _is_of_tests(path)]


def _broken(path: Path, module: ast.Module) -> Iterator[str]:
    """Each broken rule with its place: `worker/.../test_x.py:12: why`."""
    nodes = list(ast.walk(module))
    rules = IN_TEST_FILES if path.name.startswith("test_") else BESIDE_THEM
    for why, find in (EVERYWHERE | rules).items():
        yield from (f"{path.relative_to(CHECKOUT)}:{node.lineno}: {why}" for node in find(nodes))


def _tracked(pattern: str) -> list[str]:
    listed = subprocess.run(["git", "ls-files", pattern], cwd=CHECKOUT, check=True, capture_output=True, text=True)
    return [name for name in listed.stdout.splitlines() if Path(name).name.startswith("test_")]


def _is_of_tests(path: Path) -> bool:
    inside = path.relative_to(CHECKOUT).parts
    return "tests" in inside or path.name.startswith("test_") or path.name == "conftest.py"


def _private_names(nodes: list[ast.AST]) -> Iterator[ast.AST]:
    own = {node.attr for node in nodes if isinstance(node, ast.Attribute) and _is_self(node.value)}
    own |= {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    own |= {
        node.target.id
        for node in nodes
        if isinstance(node, ast.AnnAssign | ast.AugAssign) and isinstance(node.target, ast.Name)
    }
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            if any(map(_is_private, names)):
                yield node
        elif (
            isinstance(node, ast.Attribute)
            and _is_private(node.attr)
            and node.attr not in own
            and not _is_library(node)
        ):
            yield node
        elif isinstance(node, ast.Call) and _dotted(node.func) == "monkeypatch.setattr":
            words = [str(arg.value).rpartition(".")[2] for arg in node.args if isinstance(arg, ast.Constant)]
            if any(map(_is_private, words)):
                yield node


def _dotted(node: ast.expr) -> str:
    """`a.b.c`, with "?" for what is not a name: ast.unparse takes ten times as long."""
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _is_library(node: ast.Attribute) -> bool:
    """Some things libraries tell by private names alone: `os._exit`, whether CUDA was touched before a fork."""
    return ast.unparse(node).split(".")[0] in ("os", "torch")


def _is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def _clocks_read(nodes: list[ast.AST]) -> Iterator[ast.AST]:
    for node in nodes:
        is_read = isinstance(node, ast.Attribute) and node.attr in CLOCKS and _dotted(node.value) == "time"
        is_taken = isinstance(node, ast.ImportFrom) and node.module == "time"
        if is_read or is_taken:
            yield node


def _sleeps_outside_loops(nodes: list[ast.AST]) -> Iterator[ast.AST]:
    sleeps = [node for node in nodes if isinstance(node, ast.Call) and _dotted(node.func) == "time.sleep"]
    allowed = (outer for outer in nodes if sleeps and isinstance(outer, ast.While | ast.AsyncFunctionDef))
    waiting = {id(inner) for outer in allowed for inner in ast.walk(outer)}
    for node in sleeps:
        if id(node) not in waiting:
            (length,) = node.args
            if not (isinstance(length, ast.Constant) and length.value >= FOR_EVER_SECONDS):
                yield node


def _literal_timeouts(nodes: list[ast.AST]) -> Iterator[ast.AST]:
    constants = {name: value for node in _statements(nodes) for name, value in _constants(node)}
    for node in nodes:
        if isinstance(node, ast.Call):
            given = _timeouts_given(node)
        elif isinstance(node, ast.arguments):
            given = _timeouts_by_default(node)
        else:
            continue
        yield from (item for item in given if _seconds(item, constants) > LONGEST_WINDOW_SECONDS)


def _constants(node: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        yield node.targets[0].id, node.value
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
        yield node.target.id, node.value


def _timeouts_given(call: ast.Call) -> Iterator[ast.expr]:
    function, _, name = _dotted(call.func).rpartition(".")
    if name in SCALED or function == "world":  # its wait moves a clock of its own
        return
    yield from (keyword.value for keyword in call.keywords if keyword.arg in TIMEOUTS)
    yield from call.args[WAITS[name] :][:1] if name in WAITS else ()
    if name == "timedelta":  # the timeout of a process group
        yield from (keyword.value for keyword in call.keywords if keyword.arg == "seconds")


def _timeouts_by_default(of: ast.arguments) -> Iterator[ast.expr]:
    positional = [*of.posonlyargs, *of.args]
    pairs = [
        *zip(reversed(positional), reversed(of.defaults), strict=False),
        *zip(of.kwonlyargs, of.kw_defaults, strict=True),
    ]
    yield from (default for item, default in pairs if item.arg in TIMEOUTS and default is not None)


def _seconds(node: ast.expr, constants: dict[str, ast.expr]) -> float:
    """0 where it is made of anything but numbers."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return node.value
    if isinstance(node, ast.Name) and node.id in constants and not node.id.endswith("_WINDOW_SECONDS"):
        return _seconds(constants[node.id], {})
    if isinstance(node, ast.BinOp) and not any(isinstance(item, ast.Name) for item in ast.walk(node)):
        return max(_seconds(node.left, {}), _seconds(node.right, {}))
    return 0


def _excuses(nodes: list[ast.AST]) -> Iterator[ast.AST]:
    if not any(isinstance(node, ast.ExceptHandler) for node in nodes):
        return
    for test in nodes:
        if isinstance(test, ast.FunctionDef) and test.name.startswith("test_"):
            for handler in ast.walk(test):
                if isinstance(handler, ast.ExceptHandler):
                    yield from (node for node in ast.walk(handler) if isinstance(node, ast.Return | ast.Pass))


def _deadlines(nodes: list[ast.AST]) -> Iterator[ast.AST]:
    for node in nodes:
        if isinstance(node, ast.Call) and _dotted(node.func) == "settings":
            yield from (keyword for keyword in node.keywords if keyword.arg == "deadline")


def _tests_in_no_test_file(nodes: list[ast.AST]) -> Iterator[ast.AST]:
    for node in _statements(nodes):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node


def _statements(nodes: list[ast.AST]) -> Iterator[ast.stmt]:
    """At the top level of the module."""
    yield from (item for node in nodes if isinstance(node, ast.Module) for item in node.body)


Rules = dict[str, Callable[[list[ast.AST]], Iterator[ast.AST]]]

EVERYWHERE: Rules = {
    "a private name may change without notice: test what others see, or make the name public": _private_names,
    "a sleep that is long enough here is too short elsewhere: sleep in a loop that waits": _sleeps_outside_loops,
    "a busy machine needs more: take a multiple of rljob_api.tests.timeouts.TEST_TIMEOUT_SECONDS": _literal_timeouts,
    "a test that returns because of an error passes whatever is raised: use pytest.raises": _excuses,
    "the profiles in conftest.py say what holds for all properties: no deadline": _deadlines,
}
IN_TEST_FILES: Rules = {
    "on a busy machine a clock says nothing of the code: wait for what is to happen, or give it a clock": _clocks_read,
}
BESIDE_THEM: Rules = {"pytest collects tests of test_*.py only": _tests_in_no_test_file}
