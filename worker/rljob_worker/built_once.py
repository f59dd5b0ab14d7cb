"""Things built once and kept: each in a folder named after what it was built from."""

import os
import shutil
import tempfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from filelock import FileLock


def cache_root() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rljob"


def short_digest(*parts: str | bytes) -> str:
    """Twelve hex digits that change with any part, or with where one part ends and the next begins."""
    total = sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        total.update(len(data).to_bytes(8, "big") + data)
    return total.hexdigest()[:12]


def locked(path: Path) -> FileLock:
    """One builder at a time: a second process waits, then finds the work done."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(path)


def build_once(target: Path, build: Callable[[Path], None], is_whole: Callable[[Path], bool] = Path.is_dir) -> Path:
    """Fill `target` by calling `build` on an empty folder next to it: a build that fails or is killed leaves no target.

    What is there and not whole is built again.
    """
    if is_whole(target):
        return target
    with locked(target.with_name(target.name + ".lock")):
        if not is_whole(target):
            for left in (target, *target.parent.glob(f".{target.name}-*")):  # the lock is ours: nobody builds there
                shutil.rmtree(left, ignore_errors=True)
            fresh = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-"))
            try:
                build(fresh)
                fresh.chmod(0o755)
                fresh.rename(target)
            finally:
                shutil.rmtree(fresh, ignore_errors=True)
    return target


def can_keep(target: Path) -> bool:
    """Whether `target` can be built: its folder is made where that is possible."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(target.parent, os.W_OK | os.X_OK)
