"""Imports what forks will need, and tells whether this process can be forked after it."""

import gc
import importlib
import os
import traceback
from pathlib import Path

_TASKS = Path("/proc/self/task")


def preload(module: str) -> str | None:
    """Import `module`; why forks of this process would not be safe, or None where they are."""
    gc.disable()  # imports make no garbage worth a collection, and many objects that each one would look at
    try:
        importlib.import_module(module)
    except Exception:
        return f"importing {module} failed:\n{traceback.format_exc()}"
    finally:
        gc.enable()
    # what lives now lives as long as this process: collections in forks would copy every page of it
    gc.freeze()
    threads = other_threads()
    return f"importing {module} left threads behind: {', '.join(threads)}" if threads else None


def other_threads() -> list[str]:
    """Names of this process's threads but the main one, as the kernel knows them."""
    if not _TASKS.is_dir():
        return ["unknown on this system"]
    ids = [task for task in os.listdir(_TASKS) if int(task) != os.getpid()]
    return sorted((_TASKS / task / "comm").read_text().strip() for task in ids)
