"""`Overlay`: a copy of the working tree in which one module is mutated; the working tree itself is never touched.

Tests run in the copy, from its files and with its folders first on the path, so every process that they start gets the
mutant as well.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from mutation.table import SOURCES

_EPOCH = 1_000_000_000


class Overlay:
    """A copy of `root` in `folder`."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.folder = folder
        self._num_written = 0
        for path in _files(root):
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / path, target)

    @property
    def python_path(self) -> list[str]:
        """Folders that imports look in, before any other."""
        return [str(self.folder), *(str(self.folder / source) for source in SOURCES)]

    def write(self, path: str, text: str) -> None:
        """Give a module another text."""
        self._num_written += 1
        target = self.folder / path
        target.write_text(text)
        # Python takes compiled code for current when second and size agree: no two texts share a second
        os.utime(target, (_EPOCH + self._num_written, _EPOCH + self._num_written))


def _files(root: Path) -> list[str]:
    """What git tracks or would track, as far as it is there."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    result = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
    return [path for path in result.split("\0") if path and (root / path).is_file()]
