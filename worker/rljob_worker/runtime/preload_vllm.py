"""Imports vLLM besides what `preload` does, for workers that generate with it on CPUs."""

from contextlib import suppress

from rljob_worker.engines.rollout.vllm.library import load_start
from rljob_worker.errors import InvalidJob

with suppress(InvalidJob):  # where it is too old, or not installed, workers say so
    load_start()
