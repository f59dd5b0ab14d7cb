"""Tests that start vLLM, which only its own environment has: `make vllm-test`."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("vllm") else ["test_*.py"]
