"""Tests that start vLLM, which only its own environment has: `make vllm-test`."""

from importlib.util import find_spec

import pytest

collect_ignore_glob = [] if find_spec("vllm") else ["test_*.py"]


@pytest.fixture(scope="session", autouse=True)
def _imported() -> None:
    """It sets variables of its process when it is imported, which are not leaks of the first test to do so."""
    from rljob_worker.engines.rollout.vllm.library import load_start

    load_start()
