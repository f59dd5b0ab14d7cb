"""`rljob export`: a checkpoint as a Hugging Face model directory. The work needs torch, so another process does it."""

import subprocess
import sys
from pathlib import Path

from rljob_worker.checkpoint.manifest import committed
from rljob_worker.cli.extras import require_extra
from rljob_worker.cli.status import find_run
from rljob_worker.errors import InvalidJob


def export_checkpoint(run: str, out: Path, step: int | None, runs_dir: Path, *, merged: bool) -> int:
    """The exit code of the export; InvalidJob for a step without checkpoint and for an OUT that is not empty."""
    require_extra("worker", "rljob export")
    directory = find_run(run, runs_dir)
    steps = [checkpoint.step for checkpoint in committed(directory.checkpoints)]
    if not steps:
        raise InvalidJob(f"{directory.path} has no checkpoint yet")
    if step is not None and step not in steps:
        there = ", ".join(map(str, steps))
        raise InvalidJob(f"--step {step}: {directory.path} has no checkpoint of that step; there are: {there}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InvalidJob(f"{out} exists and is not an empty directory; choose another one")
    command = [sys.executable, "-P", "-m", "rljob_worker.checkpoint.export", str(directory.path), str(out)]
    command += ["--step", str(steps[-1] if step is None else step), *(["--merged"] if merged else [])]
    return subprocess.run(command).returncode
