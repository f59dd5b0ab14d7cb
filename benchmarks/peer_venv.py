"""Environments of other systems under the user's cache directory, made when absent."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Venv:
    """A name, what is installed with what it declares, and what is installed without."""

    name: str
    packages: tuple[str, ...]
    alone: tuple[str, ...] = ()

    def python(self) -> Path:
        """Its Python; installed by the first call."""
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        directory = cache / "rljob" / self.name
        result, stamp = directory / "bin" / "python", directory / "installed"
        wanted = "\n".join([*self.packages, *self.alone])
        if stamp.exists() and stamp.read_text() == wanted:
            return result
        uv = [sys.executable, "-m", "uv"]
        install = [*uv, "pip", "install", "--quiet", "--python", str(result)]
        make = [*uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(directory)]
        subprocess.run(make, check=True)
        subprocess.run([*install, *self.packages], check=True)
        if self.alone:
            subprocess.run([*install, "--no-deps", *self.alone], check=True)
        stamp.write_text(wanted)
        return result
