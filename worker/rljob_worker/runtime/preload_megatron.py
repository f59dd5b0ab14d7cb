"""Imports Megatron-core besides what `preload` does, for workers on CPUs that train with its layers."""

from contextlib import suppress

import torch

from rljob_worker.engines.megatron.library import megatron_layers
from rljob_worker.errors import InvalidJob

with suppress(InvalidJob):  # where it is not installed workers say so
    megatron_layers(torch.device("cpu"))
