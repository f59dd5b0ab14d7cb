"""One root fork server for all jobs of a test session, so that only the first of them pays for importing torch."""

import json
import os
from functools import cache

from rljob_api.vocabulary.process_environment import WORKER_DEFAULTS
from rljob_worker.built_once import short_digest
from rljob_worker.forkserver.environment import ROOT
from rljob_worker.launcher.preloading import preload_for
from rljob_worker.process.marked_processes import ENV_MARK
from rljob_worker.tests.shared_root import shared_root

TEST_MARK = "RLJOB_TEST_MARK"
"""What a test finds the processes of its run by; 16 hexadecimal digits."""


def job_environment(**more: str) -> dict[str, str]:
    """For `rljob run`: its workers are forks of the session's root, as long as no test changes a variable. Those with
    `more` variables have a root of their own."""
    environment, socket = _root(tuple(sorted(more.items())))
    return {**environment, ROOT: socket}


def launcher_environment() -> dict[str, str]:
    """As a launcher of such a job has it, as far as the root cares."""
    return {**WORKER_DEFAULTS, **job_environment(), "PYTHONUNBUFFERED": "1"}


@cache
def _root(more: tuple[tuple[str, str], ...]) -> tuple[dict[str, str], str]:
    """The environment that the root was started for, and its socket."""
    of_session = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    # said here, threads do not depend on a job's number of workers, and one root fits all
    environment = of_session | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"} | dict(more)
    # of the length that the marks of runs have: a fork shows its own in this place
    marks = {ENV_MARK: "0" * 32, TEST_MARK: "0" * 16}
    of_pods = {**WORKER_DEFAULTS, **environment, **marks, "PYTHONUNBUFFERED": "1"}
    modules = preload_for({"cpu"}, {"Megatron", "VLLM"})
    name = f"jobs-{short_digest(json.dumps(more))}"
    environment, socket = shared_root(name, environment, of_pods, modules)
    return environment, str(socket)
