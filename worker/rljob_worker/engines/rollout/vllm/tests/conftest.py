"""Tests that need vLLM run in its own environment: `make vllm-test`."""

from importlib.util import find_spec

collect_ignore = (
    [] if find_spec("vllm") else ["test_copies.py", "test_engine.py", "test_experts.py", "test_starting.py"]
)
