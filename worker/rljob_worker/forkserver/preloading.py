"""Imports what forks will need, and tells whether this process can be forked after it."""

import gc
import importlib
import os
import traceback
from collections.abc import Sequence
from pathlib import Path

SHARED_DEVICES = (
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/tty",
    "/dev/pts/",
    "/dev/shm/",
)
"""Any number of processes read and write these."""

_TASKS = Path("/proc/self/task")
_DESCRIPTORS = Path("/proc/self/fd")


def preload(modules: Sequence[str]) -> str | None:
    """Import modules; why forks of this process would not be safe, or None where they are."""
    gc.disable()  # imports make no garbage worth a collection, and many objects that each one would look at
    names = " and ".join(modules)
    try:
        for module in modules:
            importlib.import_module(module)
    except (Exception, SystemExit):
        return f"importing {names} failed:\n{traceback.format_exc()}"
    finally:
        gc.enable()
    # what lives now lives as long as this process: collections in forks would copy every page of it
    gc.freeze()
    if threads := other_threads():
        return f"importing {names} left threads behind: {', '.join(threads)}"
    if devices := open_devices():
        return f"importing {names} opened devices: {', '.join(devices)}"
    return None


def other_threads() -> list[str]:
    """Names of this process's threads but the main one, as the kernel knows them."""
    if not _TASKS.is_dir():
        return ["unknown on this system"]
    ids = [task for task in os.listdir(_TASKS) if int(task) != os.getpid()]
    return sorted((_TASKS / task / "comm").read_text().strip() for task in ids)


def open_devices(descriptors: Path = _DESCRIPTORS) -> list[str]:
    """Device files that this process holds open and that a fork cannot share: an accelerator's."""
    opened = {os.path.realpath(link) for link in descriptors.iterdir()} if descriptors.is_dir() else set()
    return sorted(path for path in opened if path.startswith("/dev/") and not path.startswith(SHARED_DEVICES))
