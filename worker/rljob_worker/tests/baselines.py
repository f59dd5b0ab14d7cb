"""Whole jobs that tests compare others with: each is run once a session, by the test process that asks first."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.built_once import build_once, short_digest
from rljob_worker.tests.jobs import Run, run_job

OUTPUT = "output.txt"


def run_once(folder: Path, job: Mapping[str, Any], files: Mapping[str, str]) -> Run:
    """The finished run of the job. folder: that of the session, for all its processes.   files: text by name, beside
    the job. To be read only: others read it, too."""
    name = job["metadata"]["name"]
    target = folder / f"{name}-{short_digest(json.dumps([job, dict(files)], sort_keys=True))}"

    def build(fresh: Path) -> None:
        write_files(fresh, files)
        run = run_job(dict(job), fresh, timeout_seconds=8 * TEST_TIMEOUT_SECONDS)
        assert run.code == 0, run.output + run.logs
        (fresh / OUTPUT).write_text(run.output)

    build_once(target, build)
    return Run(0, (target / OUTPUT).read_text(), target / "runs" / name)


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Beside a job."""
    for name, text in files.items():
        (folder / name).write_text(text)
