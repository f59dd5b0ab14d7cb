from importlib.util import find_spec
from pathlib import Path

import pytest

from rljob_worker.tiny.make import make
from rljob_worker.tiny.recipe import quick

collect_ignore = [] if find_spec("vllm") else ["test_vllm_jobs.py"]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that knows nothing, with its data."""
    directory = tmp_path_factory.mktemp("tiny")
    make(quick(0), directory)
    return directory
