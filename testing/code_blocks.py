"""The code blocks of README.md and docs/.

A block is fenced and has a language. What tests do not run has the reason in a comment before it, and a part of a job
the fields that it is tried with, where it needs some:

    <!-- not run: needs a cluster -->
    ```sh
    kubectl get rlj
    ```

    <!-- tried with: workerGroups[0].accelerator.count=8, seed=1 -->
    ```yaml
    training: {parallelism: {tensor: 8}}
    ```
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).parents[1]
PAGES = (CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").glob("**/*.md")))
LANGUAGES = frozenset({"console", "json", "python", "sh", "text", "toml", "yaml"})
_COMMENT = re.compile(r"<!-- (not run|tried with): (\S.*?) -->")
_FENCE = re.compile(r" *```(\w*)$")


@dataclass(frozen=True)
class Block:
    page: str
    """Its file, from the checkout."""
    line: int
    """Of its first line of code, from 1."""
    language: str
    text: str
    not_run: str = ""
    """Why it is not run, where it is not."""
    tried_with: tuple[str, ...] = ()
    """`PATH=VALUE` of a job that it is a part of."""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def file(self) -> str:
        """The file that a block of Python is, by its first line: `# my_rewards.py: ...`."""
        named = re.match(r"# (\w+\.py)\b", self.text)
        return named[1] if named else ""


def blocks_of(page: Path, *languages: str) -> list[Block]:
    """The blocks of a page, in these languages if any are given."""
    found = blocks_in(page.read_text(encoding="utf-8"), page.relative_to(CHECKOUT).as_posix())
    return [block for block in found if block.language in (languages or LANGUAGES | {""})]


def blocks_in(markdown: str, page: str) -> Iterator[Block]:
    """All blocks of a text. Raises ValueError for one without an end."""
    lines = iter(enumerate(markdown.splitlines(), 1))
    said: dict[str, str] = {}
    for number, line in lines:
        if fence := _FENCE.match(line):
            fields = tuple(re.split(r", (?=[\w.\[\]]+=)", said.get("tried with", "")))
            text = _code(lines, f"{page}:{number}")
            yield Block(page, number + 1, fence[1], text, said.get("not run", ""), fields if fields != ("",) else ())
        comment = _COMMENT.fullmatch(line.strip())
        said = {comment[1]: comment[2]} if comment else {} if line.strip() else said


def _code(lines: Iterator[tuple[int, str]], start: str) -> str:
    code = []
    for _, line in lines:
        if line.strip() == "```":
            return textwrap.dedent("\n".join(code)) + "\n"
        code.append(line)
    raise ValueError(f"{start}: a block without an end")


def indented_blocks(markdown: str) -> list[int]:
    """Lines that begin a block by indentation, which has no language; those of lists belong to their item."""
    found, fenced, text_before, in_list = [], False, False, False
    for number, line in enumerate(markdown.splitlines(), 1):
        fenced ^= bool(re.match(r" *```", line))
        if line and not line.startswith(" "):
            in_list = bool(re.match(r"([-*]|\d+\.|\?\?\?|!!!) ?", line))
        if line.startswith("    ") and not (fenced or text_before or in_list):
            found.append(number)
        text_before = bool(line.strip())
    return found
