"""What stays on a machine while the attempts of a run come and go, and who ends what is left of it."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from rljob_worker.forkserver.client import Root
from rljob_worker.forkserver.environment import ROOT, are_forked
from rljob_worker.launcher.preloading import preload_for
from rljob_worker.local.pods.environment import RunContext, pod_environment, usable_cores
from rljob_worker.process.marked_processes import ENV_MARK

MAX_TEMPORARY_PATH = 60
"""Longest path: `/rljob-abcdefgh/abcdefghijkl-12345-123.sock` takes 44 of the 107 bytes for a socket's path."""
MAX_TEMPORARY_PATH_OF_SERVICES = 24
"""Ray's sockets take 83: `/rljob-abcdefgh/ray/session_2026-01-01_00-00-00_000000_1234567/sockets/plasma_store`."""


@dataclass(frozen=True, slots=True)
class Lifetime:
    """What all processes of a run on a machine have in common."""

    scratch: Path
    """Has a short path."""
    mark: str
    """In the environment of all processes of the run's attempts here."""
    services_mark: str
    """In that of its services, which outlive an attempt."""
    lifeline: int
    """The read end of a pipe whose write end this process alone holds."""


@contextlib.contextmanager
def lifetime(room: int = MAX_TEMPORARY_PATH) -> Iterator[Lifetime]:
    """No file of its scratch directory outlives the block. room: characters that the system's own directory for such
    files may have."""
    is_short = len(tempfile.gettempdir()) <= room
    scratch = tempfile.mkdtemp(prefix="rljob-", dir=None if is_short else "/tmp")
    read_end, write_end = os.pipe()
    try:
        yield Lifetime(Path(scratch), secrets.token_hex(16), secrets.token_hex(16), read_end)
    finally:
        os.close(read_end)
        os.close(write_end)
        shutil.rmtree(scratch, ignore_errors=True)


@contextlib.contextmanager
def rooted(context: RunContext, forks: bool, marks: tuple[str, ...], log: Path | None) -> Iterator[RunContext]:
    """With the root that launchers come from; no process with one of the marks outlives the block or this process.

    forks: whether what workers import is worth importing once. log: None: this process's output.
    """
    pod = context.here[0]
    environment = pod_environment(os.environ, context, pod, usable_cores())
    inherited = os.environ.get(ROOT, "")
    preload: tuple[str, ...] = ()
    if forks and not inherited and are_forked(context.plan.group(pod.group).device, environment):
        groups = {item.group for item in (*context.here, *context.guests)}
        libraries = {engine.library for engine in context.plan.engines if engine.group in groups}
        preload = preload_for({context.plan.group(name).device for name in groups}, libraries)
    # a fork shows its own mark in the place of this one, and the root is of no attempt
    unmarked = {**environment, ENV_MARK: "0" * len(context.mark)}
    root = Root(unmarked, preload, context.scratch / "fork.sock", log, context.scratch, marks)
    with contextlib.closing(root):
        yield replace(context, root=root, inherited_root=inherited)
