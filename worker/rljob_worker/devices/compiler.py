"""What torch compiles layers with."""

from __future__ import annotations

import shutil
import sysconfig
from collections.abc import Mapping
from pathlib import Path

DEFAULT = "g++"
"""Where the variable CXX names no other: torch's choice."""


def missing_for_compiling(environment: Mapping[str, str]) -> str:
    """What a process with this environment lacks of it, by name; empty where it has all."""
    compiler, is_there = _cpp_compiler(environment)
    if not is_there:
        return compiler
    header = Path(sysconfig.get_path("include"), "Python.h")  # torch and Triton compile extensions of Python
    return "" if header.is_file() else f"{header} (of the package python3-dev)"


def _cpp_compiler(environment: Mapping[str, str]) -> tuple[str, bool]:
    """The name of the C++ compiler, and whether it is installed."""
    name = environment.get("CXX", DEFAULT)
    return name, shutil.which(name, path=environment.get("PATH")) is not None
