"""Fixtures of tests that run whole jobs."""

import os
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from rljob_worker.built_once import build_once
from rljob_worker.tests.baselines import run_once
from rljob_worker.tests.comparable import FILES, NUM_STEPS, comparable_job, on_workers
from rljob_worker.tests.jobs import Run
from rljob_worker.tiny.make import make_model
from rljob_worker.tiny.recipe import quick

collect_ignore = [] if find_spec("vllm") else ["test_vllm_jobs.py"]

FinishedRun = Callable[..., Run]


@pytest.fixture(scope="session")
def session_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all test processes of the session."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def tiny(session_folder: Path) -> Path:
    """A tiny model that knows nothing, with its data."""
    return build_once(session_folder / "tiny", lambda folder: make_model(quick(0), folder))


@pytest.fixture(scope="session")
def finished_run(session_folder: Path) -> FinishedRun:
    """`finished_run(job, files)`: the run of a job that several tests compare others with; see `run_once`."""

    def run(job: Mapping[str, Any], files: Mapping[str, str] | None = None) -> Run:
        return run_once(session_folder / "runs", job, files or {})

    return run


@pytest.fixture(scope="session")
def one_worker(tiny: Path, finished_run: FinishedRun) -> Run:
    """The comparable job on one worker that does everything."""
    return finished_run(comparable_job(tiny, on_workers(1), NUM_STEPS), FILES)
