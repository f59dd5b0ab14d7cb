"""Root fork servers that the processes of a test session share: what one imports takes seconds of each that has its
own."""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from rljob_worker.built_once import locked
from rljob_worker.forkserver.client import Root

Environment = dict[str, str]


def shared_root(
    name: str, environment: Environment, of_root: Environment, preload: Sequence[str]
) -> tuple[Environment, Path]:
    """The environment and the socket of the session's root of this name. The process that asks first starts it, with
    the environment `of_root`, and ends it after the last of those that have asked: what each of them gets is the
    `environment` of the first."""
    folder = session_folder(name)
    folder.mkdir(mode=0o700, exist_ok=True)
    path, known = folder / "root.sock", folder / "environment.json"
    users = (folder / "users").open("w")
    fcntl.flock(users, fcntl.LOCK_SH)  # until this process ends
    with locked(folder / "lock"):
        if known.exists():
            atexit.register(users.close)
        else:
            root = Root(of_root, preload, path, folder / "root.log")
            atexit.register(end_after_others, users, root.close, folder)
            known.write_text(json.dumps(environment))
        return json.loads(known.read_text()), path


def end_after_others(users: IO[str], close: Callable[[], None], folder: Path) -> None:
    fcntl.flock(users, fcntl.LOCK_EX)
    users.close()
    close()
    shutil.rmtree(folder)


def session_folder(name: str) -> Path:
    """For all processes of the session, which xdist gives an identifier; without xdist there is this process alone."""
    session = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    return Path(tempfile.gettempdir(), f"rljob-test-{session}-{name}")
