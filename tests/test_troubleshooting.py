"""Messages that docs/troubleshooting.md quotes are those of the code."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

CHECKOUT = Path(__file__).parents[1]
PACKAGES = ("worker/rljob_worker", "crds/rljob_api", "client/rljob")


@cache
def texts() -> str:
    """The sources, with strings that stand beside each other joined."""
    sources = (path.read_text(encoding="utf-8") for package in PACKAGES for path in modules(CHECKOUT / package))
    return "\n".join(re.sub(r'"\s*\n\s*f?"', "", source) for source in sources)


def modules(package: Path) -> list[Path]:
    return [path for path in sorted(package.rglob("*.py")) if "tests" not in path.relative_to(package).parts]


def is_in_code(message: str) -> bool:
    """Its words between … each stand in a string; messages are put together from several."""
    parts = [part.strip(" :,;()") for part in message.split("…")]
    return all(part in texts() for part in parts) and max(map(len, parts)) >= 6


def test_quoted_messages_are_in_the_code():
    page = (CHECKOUT / "docs" / "troubleshooting.md").read_text()
    quoted = [next(filter(None, found)) for found in re.findall(r"(?m)^\| (?:`` (.+?) ``|`([^`]+)`) \|", page)]
    assert len(quoted) > 20
    assert [message for message in quoted if not is_in_code(message)] == []
    assert not is_in_code("there is no such gadget")
