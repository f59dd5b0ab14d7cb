"""What the build of the site adds: exit codes and messages; and links that leave this folder, as names."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_worker import errors

ROOT = Path(__file__).parents[1]
_ROOMS = ("worker/rljob_worker", "client/rljob")
_MIN_LETTERS = 15
"""Shorter texts are parts of messages."""
_CURES = {
    ExitCode.DONE: "nothing",
    ExitCode.INVALID_JOB: "change the job as the message says; `rljob validate` shows all at once",
    ExitCode.BAD_DATA: "look at the row, file or reward that the message names",
    ExitCode.BUG: "read the traceback in the log; a stage or reward of yours, or else a report to us",
    ExitCode.STORAGE: "free space or mend permissions, then run again: it goes on from the last checkpoint",
    ExitCode.RETRY: "nothing: the gang restarts, up to `failurePolicy.maxRestarts` times",
    ExitCode.STOPPED: "run again to go on",
    ExitCode.INTERRUPTED: "run again to go on from the last checkpoint",
}


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Called by mkdocs for each page."""
    if page.file.src_path == "troubleshooting.md":
        markdown = markdown.replace("<!-- exit codes -->", exit_codes()).replace("<!-- messages -->", messages())
    return without_links_out(markdown)


def without_links_out(markdown: str) -> str:
    """`[text](../x)` as `text (x)`: what is not in this folder is not in the site."""
    return re.sub(r"\[([^\]]+)\]\(\.\./([^)]+)\)", r"\1 (`\2`)", markdown)


def exit_codes() -> str:
    """A table."""
    lines = [f"| {int(code)} | {code.meaning} | {cure} |" for code, cure in _CURES.items()]
    return "\n".join(["| exit code | why | what to do |", "|---|---|---|", *lines])


def messages() -> str:
    """A section for each exit code, with the texts of the errors that carry it, as the code raises them."""
    result: dict[ExitCode, set[str]] = {}
    for room in _ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            if "tests" not in path.relative_to(ROOT).parts:
                for code, text in raised(ast.parse(path.read_text(encoding="utf-8"))):
                    result.setdefault(code, set()).add(text)
    sections = []
    for code in sorted(result):
        sections += [f"### {int(code)}: {code.meaning}", "", f"What to do: {_CURES[code]}.", ""]
        sections += [*(f"- {text}" for text in sorted(result[code])), ""]
    return "\n".join(sections)


def raised(module: ast.Module) -> Iterator[tuple[ExitCode, str]]:
    """Exit code and text of each error with a known end that is made in a module."""
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
            kind = getattr(errors, node.func.id, None)
            text = template(node.args[0])
            if isinstance(kind, type) and issubclass(kind, errors.RLJobError) and _letters(text) >= _MIN_LETTERS:
                yield kind.exit_code, text


def template(node: ast.expr) -> str:
    """The text of a string, with … for what is put in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return escaped(node.value)
    if isinstance(node, ast.JoinedStr):
        return re.sub("(… ?)+…", "…", "".join(template(part) for part in node.values))
    return "…"


def escaped(text: str) -> str:
    """Nothing in a message is Markdown or HTML."""
    return re.sub(r"([\\`*_{}\[\]<>#|])", r"\\\1", " ".join(text.split())) if text.strip() == text else _spaced(text)


def _spaced(text: str) -> str:
    return (" " if text[:1].isspace() else "") + escaped(text.strip()) + (" " if text[-1:].isspace() else "")


def _letters(text: str) -> int:
    return sum(letter.isalpha() for letter in text)
