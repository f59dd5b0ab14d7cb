"""The few numbers ranks agree on in a step, and the time it takes them."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from rljob_worker.engines.fsdp.sharding import world_size
from rljob_worker.engines.parallel.mesh import ProcessMesh
from rljob_worker.engines.parallel.mesh_ranks import LAYERS, SHARDS, STAGE
from rljob_worker.engines.parallel.shards import local_part


class Agreement:
    """Sums and maxima in float64, free on one rank: over the copies, whose rows differ; of gradients and of tokens over
    all who hold shards."""

    def __init__(self, mesh: ProcessMesh) -> None:
        self._mesh = mesh

    def gather(self, numbers: list[float]) -> torch.Tensor:
        """[copies, numbers] float64 on the CPU; the ranks of a copy give the same numbers."""
        return self._gather(numbers, self._mesh.group("dp"))

    def total(self, numbers: torch.Tensor) -> torch.Tensor:
        """Their sums over all whose tokens differ, in place."""
        group = self._mesh.group(*STAGE)
        if world_size(group) > 1:
            dist.all_reduce(numbers, group=group)
        return numbers

    def of_pipeline_stages(self, numbers: list[float]) -> torch.Tensor:
        """[pipeline stages, numbers] float64 on the CPU. All stages call it at the same point of a step: between, some
        are at other micro-batches than others."""
        return self._gather(numbers, self._mesh.group("pp"))

    def _gather(self, numbers: list[float], group: dist.ProcessGroup | None) -> torch.Tensor:
        mine = torch.tensor(numbers, dtype=torch.float64)
        if world_size(group) == 1:
            return mine[None]
        everyone = torch.empty(world_size(group) * len(mine), dtype=torch.float64, device=self._mesh.device)
        dist.all_gather_single(everyone, mine.to(self._mesh.device), group=group)
        return everyone.view(-1, len(mine)).cpu()

    def maximum(self, number: int) -> int:
        return int(self.gather([number]).max())

    def gradient_norm(self, whole: list[torch.Tensor], split: list[torch.Tensor]) -> float:
        """L2 norm over all parameters, of which each rank of a replica holds its shards: `split` are of parts that only
        this rank of it has, `whole` of what the ranks with the other parts have alike."""
        of_whole = self._gather([_squared(whole)], self._mesh.group(*SHARDS)).sum()
        of_split = self._gather([_squared(split)], self._mesh.group(*LAYERS)).sum()
        return math.sqrt(float(self.of_pipeline_stages([float(of_whole + of_split)]).sum()))


def _squared(gradients: list[torch.Tensor]) -> float:
    norms = torch._foreach_norm([local_part(gradient) for gradient in gradients]) if gradients else []
    return float(torch.stack(norms).double().square().sum()) if norms else 0.0


class Stopwatch:
    """Seconds per phase of an update. Work queued on an accelerator is charged to the phase that waits for it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
