"""Things built once and kept: each in a folder named after what it was built from."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path


def cache_root() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rljob"


def digest(*parts: str | bytes) -> str:
    """Twelve hex digits that change with any part, or with where one part ends and the next begins."""
    total = sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        total.update(len(data).to_bytes(8, "big") + data)
    return total.hexdigest()[:12]


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """One builder at a time: a second process waits, then finds the work done."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def build_once(target: Path, build: Callable[[Path], None]) -> Path:
    """Fills `target` by calling `build` on an empty folder beside it: a build that fails leaves no target."""
    if target.is_dir():
        return target
    with locked(target.with_name(target.name + ".lock")):
        if not target.is_dir():
            fresh = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-"))
            try:
                build(fresh)
                fresh.chmod(0o755)
                fresh.rename(target)
            finally:
                shutil.rmtree(fresh, ignore_errors=True)
    return target
