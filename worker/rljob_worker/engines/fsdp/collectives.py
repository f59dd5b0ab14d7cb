"""The few numbers ranks agree on in a step, and the time it takes them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from rljob_worker.engines.fsdp.sharding import local_part, world_size


class Agreement:
    """Sums and maxima over the data-parallel ranks, in float64; free on one rank."""

    def __init__(self, group: dist.ProcessGroup | None, device: torch.device) -> None:
        self.group = group
        self.device = device

    def gather(self, numbers: list[float]) -> torch.Tensor:
        """[ranks, numbers] float64 on the CPU."""
        mine = torch.tensor(numbers, dtype=torch.float64)
        if world_size(self.group) == 1:
            return mine[None]
        everyone = torch.empty(world_size(self.group) * len(mine), dtype=torch.float64, device=self.device)
        dist.all_gather_single(everyone, mine.to(self.device), group=self.group)
        return everyone.view(-1, len(mine)).cpu()

    def maximum(self, number: int) -> int:
        return int(self.gather([number]).max())

    def gradient_norm(self, gradients: list[torch.Tensor]) -> float:
        """L2 norm over all parameters and ranks, each rank holding its shards."""
        norms = torch._foreach_norm([local_part(gradient) for gradient in gradients])
        mine = torch.stack(norms).double().square().sum().item() if norms else 0.0
        return float(self.gather([mine]).sum().sqrt())


class Stopwatch:
    """Seconds per phase of an update. Work queued on an accelerator is charged to the phase that waits for it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
