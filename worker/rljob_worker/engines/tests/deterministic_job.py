"""A process whose job has `training.deterministic`, and what autograd finds there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from rljob_worker.engines.deterministic import compute_deterministically

STRICT, WARNS, FREE = "strict", "warns", "free"


@contextmanager
def deterministic_job() -> Iterator[None]:
    """A block in which this process computes as one with an accelerator would."""
    with torch_as_it_was():
        compute_deterministically(torch.device("cuda", 0))
        yield


@contextmanager
def torch_as_it_was() -> Iterator[None]:
    """A block after which torch is asked for nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
        patch.setenv("CUBLAS_WORKSPACE_CONFIG", "")  # so that it is taken away again
        patch.delenv("CUBLAS_WORKSPACE_CONFIG")
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(False)


def mode() -> str:
    """What torch does about an operation without a deterministic kernel."""
    if not torch.are_deterministic_algorithms_enabled():
        return FREE
    return WARNS if torch.is_deterministic_algorithms_warn_only_enabled() else STRICT


class NotedMode(torch.autograd.Function):
    """Hands on what it gets, and notes (pass, mode) of both passes."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, noted: list[tuple[str, str]]) -> torch.Tensor:
        ctx.noted = noted
        noted.append(("forward", mode()))
        return values.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.noted.append(("backward", mode()))
        return gradient, None
