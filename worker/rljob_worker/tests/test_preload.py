"""What the preload of real workers brings along, and what it must not have done."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rljob_worker.forkserver.client import ForkServer
from rljob_worker.forkserver.environment import ROOT
from rljob_worker.forkserver.tests.asking import ask
from rljob_worker.tests.jobs import Run
from rljob_worker.tests.session_root import launcher_environment

HEAVY = ("torch", "transformers", "datasets", "pandas", "sympy", "tensorboard", "pyarrow", "numpy", "rljob_worker")
"""Packages that cost a worker seconds when it imports them by itself."""
FAMILY_MODULES = 12
"""What a model's family and the first use of a library may still bring: its modelling code, kernels of its data."""


@pytest.fixture(scope="module")
def inspected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A fork of the session's root, which has that preload."""
    environment = launcher_environment()
    with closing(ForkServer(Path(environment[ROOT]), any_environment=True)) as server:
        folder = tmp_path_factory.mktemp("inspected")
        return ask(server, folder, module="rljob_worker.tests.inspected", **environment).report()


def test_no_device_is_touched_before_the_fork(inspected: dict[str, Any]) -> None:
    """A CUDA context does not survive a fork, and asking for the number of devices is enough to spoil it."""
    assert not inspected["touched_a_device"]


def test_the_server_has_one_thread(inspected: dict[str, Any]) -> None:
    assert inspected["threads_of_server"] == 1


@pytest.mark.slow
def test_a_worker_imports_next_to_nothing_by_itself(inspected: dict[str, Any], one_worker: Run) -> None:
    """After a whole job, its first step, validation and checkpoint included, in a fork of the session's root."""
    imported = set(json.loads((one_worker.directory / "modules-0.json").read_text()))
    of_launcher = {name for name in imported if name.startswith("rljob_worker.launcher")}  # it forks its workers
    late = imported - set(inspected["modules"]) - of_launcher
    heavy = sorted(name for name in late if name.partition(".")[0] in HEAVY and ".tests" not in name)
    assert len(heavy) <= FAMILY_MODULES, heavy
