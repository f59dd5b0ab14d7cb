"""The library itself: imported once, where a job asks for it."""

from __future__ import annotations

import warnings

import torch

from rljob_worker.engines.fsdp.layers import Layers
from rljob_worker.errors import InvalidJob

INSTALL = "pip install 'rljob[megatron]'"


def megatron_layers(device: torch.device) -> Layers:
    """Raises InvalidJob where Megatron-core is not installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its own parts, and of libraries that it can do without
            from rljob_worker.engines.megatron.layers import MegatronLayers
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("megatron"):
            raise
        raise InvalidJob(
            f"training.engine Megatron: this environment has no Megatron-core; {INSTALL}, or write FSDP"
        ) from error
    if device.type == "cpu":
        from rljob_worker.engines.megatron import cpu

        cpu.make_memory_on_cpus()
    return MegatronLayers()
