"""Several ranks in one process, for functions that meet in sums."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, BrokenBarrierError
from typing import TypeVar

import torch
from torch import Tensor

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS

Result = TypeVar("Result")


def on_ranks(num_ranks: int, work: Callable[[int, Callable[[Tensor], Tensor]], Result]) -> list[Result]:
    """`work(rank, reduce)` in a thread per rank; `reduce` waits for all and returns the sum in the order of ranks."""
    slots: list[Tensor] = [torch.empty(0)] * num_ranks
    meet = Barrier(num_ranks, timeout=TEST_TIMEOUT_SECONDS)

    def run(rank: int) -> Result:
        def reduce(local: Tensor) -> Tensor:
            slots[rank] = local
            meet.wait()
            total = torch.stack(slots).sum(0)
            meet.wait()
            return total

        try:
            return work(rank, reduce)
        except BaseException:
            meet.abort()  # the others would wait for ever
            raise

    with ThreadPoolExecutor(num_ranks) as threads:
        futures = [threads.submit(run, rank) for rank in range(num_ranks)]
    errors = [error for future in futures if (error := future.exception()) is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, BrokenBarrierError)):
        raise error  # that of a rank which only waited for another one comes last
    return [future.result() for future in futures]
