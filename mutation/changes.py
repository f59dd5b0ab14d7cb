"""Which lines of a file differ from another commit."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

_HUNK = re.compile(r"^@@ -\S+ \+(\d+)(?:,(\d+))? @@", re.MULTILINE)


def changed_lines(root: Path, path: str, base: str) -> set[int]:
    """Numbers of the lines in the working tree that `base` does not have; all of a file that git does not know."""
    if not _git(root, "ls-files", "--", path):
        return set(range(1, len((root / path).read_text().splitlines()) + 1))
    fork = _git(root, "merge-base", base, "HEAD").strip()
    return lines_added(_git(root, "diff", "--unified=0", "--no-color", "--no-ext-diff", fork, "--", path))


def lines_added(diff: str) -> set[int]:
    """Numbers of the new lines of a diff without context."""
    hunks = ((int(start), int(count or 1)) for start, count in _HUNK.findall(diff))
    return {line for start, count in hunks for line in range(start, start + count)}


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True).stdout
