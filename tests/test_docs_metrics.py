"""Metrics that the worker reports are explained: in docs/metrics.md, or in the page of their room."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

CHECKOUT = Path(__file__).parents[1]
WORKER = CHECKOUT / "worker" / "rljob_worker"
PAGES = ("metrics.md", "train-a-robot-policy.md", "long-tail.md", "services.md")
ROOMS = (
    "conversation|critic|data|generators|health|kl|leases|loss|mismatch|partial|policy|progress|response|response_length|"
    "reward|rollout|sampling|service|simulator|stage|staleness|throughput|time|tokens|training|update|validation|value|weights"
)
NO_METRICS = {
    "reward/square_mean",  # becomes reward/std
    "training/accuracy",  # by source alone
    "training/reward",
    "tokens/s",  # a unit
    "time/<x>_idle",  # begins names
    "policy/<x>/<x>",  # any metric, of one policy
}


def written(node: ast.AST) -> str:
    """The text of a string; <x> for what an f-string puts in."""
    if isinstance(node, ast.JoinedStr):
        return "".join(written(part) if isinstance(part, ast.Constant) else "<x>" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def reported() -> Iterator[str]:
    """Names of metrics in the worker's code."""
    for path in WORKER.rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        if "tests" not in path.relative_to(WORKER).parts and re.search(rf"[\"']({ROOMS})/", source):
            texts = (written(node) for node in ast.walk(ast.parse(source)))
            yield from (text for text in texts if re.fullmatch(rf"({ROOMS})/[\w<>@/]*[\w<>]", text))


def explained() -> list[str]:
    """Names in the tables of the pages; <x> for what is in angle brackets or in capitals."""
    lines = [line for page in PAGES for line in (CHECKOUT / "docs" / page).read_text().splitlines()]
    found = [name for line in lines if line.startswith("| `") for name in re.findall(r"`([^` ]+/[^` ]+)`", line)]
    return [re.sub(r"<[^>]*>|\b[A-Z]+\b", "<x>", name) for name in found]


def matches(name: str, other: str) -> bool:
    """Whether what <x> stands for in one of them can make it the other."""
    return any(re.fullmatch(re.escape(a).replace("<x>", "[^/]+"), b) for a, b in ((name, other), (other, name)))


def is_explained(name: str) -> bool:
    return any(matches(name, other) for other in explained())


def test_metrics_of_the_code_are_explained():
    there = {name for name in reported() if name not in NO_METRICS and not name.endswith("_")}
    assert [name for name in sorted(there) if not is_explained(name)] == []
