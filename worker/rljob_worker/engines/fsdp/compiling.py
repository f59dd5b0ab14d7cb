"""Decoder layers under torch.compile: norms, rotations, activations and sums of a layer in fewer kernels.

Attention stays as it is, since its shapes are other ones in every pack; it cuts a layer in four parts, each of which is
compiled once for any number of tokens. Where ranks split matrices their exchanges cut it, too (`parallel.tensor`). All
layers of a model share what is compiled; forward and backward passes have each their own, and so does scoring. On a CPU
that is C++, which takes minutes at first; it is kept in torch's cache directory (TORCHINDUCTOR_CACHE_DIR).
"""

from __future__ import annotations

import logging
import os

import torch
from transformers import AttentionInterface

from rljob_worker.devices.compiler import missing_for_compiling
from rljob_worker.engines.attention.varlen import ATTENTION, attention
from rljob_worker.engines.models import decoder_layers
from rljob_worker.engines.router import routers
from rljob_worker.errors import InvalidJob

log = logging.getLogger(__name__)

VARIANTS = 64
"""Compiled variants of a function (by layer, pass and model). Torch keeps 8, and what comes later is not compiled."""


def can_compile(model: torch.nn.Module) -> bool:
    """Whether a model may be compiled of which nobody says that it has to be."""
    if routers(model):
        return False
    if lacking := missing_for_compiling(os.environ):
        log.warning("layers are not compiled: %s is not installed here", lacking)
    return not lacking


def compile_layers(model: torch.nn.Module) -> None:
    """Nothing is compiled before the first pass. Raises InvalidJob for a model with experts."""
    if routers(model):
        raise InvalidJob(
            "training.compile: models with experts are not compiled, since every pass sends its experts other numbers "
            "of tokens; write false"
        )
    torch._dynamo.config.recompile_limit = max(VARIANTS, torch._dynamo.config.recompile_limit)
    AttentionInterface.register(ATTENTION, torch.compiler.disable(attention))
    for layer in decoder_layers(model):
        layer.forward = torch.compile(layer.forward, dynamic=True)
