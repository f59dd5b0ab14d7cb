"""Environment variables of processes that run user code."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rljob_api.vocabulary import keys
from rljob_worker.process.marked_processes import ENV_MARK

PASSED = frozenset(
    {
        keys.ENV_CODE,
        ENV_MARK,
        "LANG",
        "LANGUAGE",
        "LD_LIBRARY_PATH",
        "PATH",
        "PYTHONHASHSEED",
        "SSL_CERT_DIR",
        "SSL_CERT_FILE",
        "TZ",
    }
)
"""What every process gets of the worker's variables."""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def child_environment(pythonpath: Sequence[str | os.PathLike[str]]) -> dict[str, str]:
    """The worker's own environment: what the worker can import, `pythonpath` first; one thread per numeric library."""
    return {**ONE_THREAD, **os.environ, "PYTHONPATH": _search_path(pythonpath)}


def bounded_environment(
    pythonpath: Sequence[str | os.PathLike[str]],
    names: Iterable[str],
    environment: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """`child_environment` with nothing of the worker's but what a program needs to run, and the variables of these
    names."""
    allowed = PASSED | set(names)
    passed = {name: value for name, value in environment.items() if name in allowed or name.startswith("LC_")}
    return {**ONE_THREAD, **passed, "PYTHONPATH": _search_path(pythonpath)}


def _search_path(pythonpath: Sequence[str | os.PathLike[str]]) -> str:
    paths = [str(Path(path).absolute()) for path in [*pythonpath, *sys.path]]
    return os.pathsep.join(dict.fromkeys(paths))
