"""One engine over the ranks of a copy.

Every rank of the copy runs the same engine with the same requests: what each schedules and samples follows from them
alone, so no rank commands another. Between ranks go the sums of layers, and a word after every step on whether they
still agree.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np
import torch
import torch.distributed as dist
from vllm.distributed.parallel_state import get_tp_group
from vllm.v1.executor.uniproc_executor import ExecutorWithExternalLauncher

from rljob_worker.engines.parallel.mesh import ProcessMesh

if TYPE_CHECKING:
    from vllm.outputs import RequestOutput

_NAME_BITS = 48
"""Random bits of a name that no other copy of the machine has, of this job or another; a float64 holds it."""


def executor_of(mesh: ProcessMesh, device: torch.device) -> type[ExecutorWithExternalLauncher]:
    """What vLLM is to run its model with: this process, as its rank of the world there is. Collective over the copy.

    Memory that ranks of a copy share has the name of the way they met, which is the same for all jobs of a machine
    with vLLM's own launcher.
    """
    drawn, _ = mesh.from_leader((1,), lambda: (np.array([float(secrets.randbits(_NAME_BITS))]), None))
    name = f"rljob-{int(drawn[0]):x}"

    class CopyExecutor(ExecutorWithExternalLauncher):  # type: ignore[misc]
        def _distributed_args(self) -> tuple[str, int, int]:
            return f"file:///{name}", dist.get_rank(), device.index or 0

        def _init_executor(self) -> None:
            super()._init_executor()
            _forget_shared_memory(name)

    return CopyExecutor


def _forget_shared_memory(name: str) -> None:
    """What all ranks of a copy have mapped needs no name, under which it would outlive them. And a queue of 24 MiB goes
    that is for objects, which nobody sends here."""
    for segment in Path("/dev/shm").glob(f"{name}-*"):
        segment.unlink(missing_ok=True)
    get_tp_group().mq_broadcaster = None


@contextmanager
def own_groups() -> Iterator[None]:
    """A block in which `dist.new_group` makes groups that this rank is in, and asks nobody else.

    vLLM calls it for all copies of the world on every rank, and each call waits for the whole world: for 1,024 ranks
    ten thousand times.
    """
    everybody = dist.new_group
    dist.new_group = partial(everybody, use_local_synchronization=True)
    try:
        yield
    finally:
        dist.new_group = everybody


def outputs_digest(outputs: Sequence[RequestOutput]) -> int:
    """32 bits of what a step said of its requests: alike where all ranks sampled the same."""
    said = [(output.request_id, output.finished, list(output.outputs[0].token_ids)) for output in outputs]
    return crc32(repr(said).encode())
