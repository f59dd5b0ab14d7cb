"""Operations that add in the same order every time, on accelerators; CPUs always do.

Where torch only warns of operations without such a kernel, its attention has a backward pass that adds in any order,
and warns of that, too (aten's `attention_backward.cu`). So a backward pass is strict, and the rest is not: sampling has
operations, such as sums up to each word, of which there is no other kernel.

    compute_deterministically(device)     once, in a process of a job that asks for it
    with strict_backward(): loss.backward()
    checkpoint(..., context_fn=recompute_contexts)
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from rljob_worker.errors import WrongField

_REFUSED = " does not have a deterministic implementation"
"""What torch says behind the name of an operation."""


def compute_deterministically(device: torch.device) -> None:
    """Let what this process computes from here on add in the same order every time. Torch warns once of each operator
    that cannot."""
    if device.type == "cpu":
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when its first product is made
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # what is read was written


@contextmanager
def strict_backward() -> Iterator[None]:
    """A block around a backward pass, in all threads of autograd, too. Nothing where `compute_deterministically` was
    not called.

    Raises WrongField naming an operation that has no deterministic kernel.
    """
    if not _warns_only():
        yield
        return
    torch.use_deterministic_algorithms(True)
    try:
        yield
    except RuntimeError as error:
        operation, refused, _ = str(error).partition(_REFUSED)
        if not refused:
            raise
        raise WrongField(
            f"training.deterministic: the backward pass of this model has {operation}, of which torch has no kernel "
            f"that adds in the same order every time; write false",
            "training.deterministic",
        ) from error
    finally:
        torch.use_deterministic_algorithms(True, warn_only=True)


def recompute_contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Blocks around a forward pass, and around the same one again in a backward pass: as strict as the first, whose
    operations were let pass and whose compiled layers would be compiled once more."""
    return nullcontext(), _warning_only() if _warns_only() else nullcontext()


@contextmanager
def _warning_only() -> Iterator[None]:
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(True)


def _warns_only() -> bool:
    is_asked: bool = torch.are_deterministic_algorithms_enabled()
    return is_asked and torch.is_deterministic_algorithms_warn_only_enabled()
