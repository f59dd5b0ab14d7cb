"""The C++ compiler that torch compiles layers with."""

from __future__ import annotations

import shutil
from collections.abc import Mapping

DEFAULT = "g++"
"""Where the variable CXX names no other: torch's choice."""


def cpp_compiler(environment: Mapping[str, str]) -> tuple[str, bool]:
    """Its name in a process with this environment, and whether it is installed."""
    name = environment.get("CXX", DEFAULT)
    return name, shutil.which(name, path=environment.get("PATH")) is not None
