"""GELU by its tanh formula in one kernel, put in place of transformers' composition of it.

x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2. Hendrycks & Gimpel 2016, https://arxiv.org/abs/1606.08415
Autograd keeps four arrays of the composition for the backward pass; the kernel keeps x.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from transformers.activations import NewGELUActivation


class TanhGELU(torch.nn.Module):  # type: ignore[misc]
    """[...] -> [...], in the dtype of what it is given."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return F.gelu(hidden, approximate="tanh")


def replace_gelus(model: torch.nn.Module) -> None:
    """Where a model has one of this formula in parts. A class, as with norms: layers that are compiled share it."""
    for module in model.modules():
        if type(module) is NewGELUActivation:
            module.__class__ = TanhGELU
