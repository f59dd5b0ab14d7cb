"""Which pipeline stage has which tensor, and how the others come by it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist

from rljob_worker.engines.fsdp.buckets import Named, Scattered


@dataclass(frozen=True, slots=True)
class Held:
    """A tensor that one stage has."""

    shape: tuple[int, ...]
    """Of all of it."""
    stage: int


@dataclass(frozen=True, slots=True)
class Stages:
    """The ranks of a copy that have layers one after another, as one of them sees it."""

    group: dist.ProcessGroup
    held: dict[str, Held]
    """In the order of the model."""

    def everything(self) -> Iterator[Scattered]:
        """The tensors of all stages, whole and without memory."""
        return (Scattered(name, torch.empty(held.shape, device="meta")) for name, held in self.held.items())

    def together(
        self, own: Iterator[Named], names: Iterable[str], dtype: torch.dtype, device: torch.device
    ) -> Iterator[Named]:
        """Tensors of these names, whole, on every stage. own: this stage's of them, whole as well. Collective."""
        for name in names:
            held = self.held[name]
            tensor = torch.empty(held.shape, dtype=dtype, device=device)
            if held.stage == self.group.rank():
                found, mine = next(own)
                assert found == name, f"{found} in place of {name}"
                tensor.copy_(mine)
            dist.broadcast(tensor.view(torch.uint8), group=self.group, group_src=held.stage)
            yield name, tensor
        assert next(own, None) is None, "a tensor beyond those of the stage"
