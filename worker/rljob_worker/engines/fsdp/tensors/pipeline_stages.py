"""Which pipeline stage has which tensor, and how the others come by it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist

from rljob_worker.engines.fsdp.tensors.buckets import Named, Scattered


@dataclass(frozen=True, slots=True)
class StageTensor:
    """A tensor that one stage has."""

    shape: tuple[int, ...]
    """Shape of the whole tensor."""
    stage: int


@dataclass(frozen=True, slots=True)
class PipelineStages:
    """The ranks of a copy that have layers one after another, as one of them sees it."""

    group: dist.ProcessGroup
    held: dict[str, StageTensor]
    """In the order of the model."""
    shared: tuple[str, ...] = ()
    """Those of the first stage that the last one has as well: an embedding that is the last layer."""

    def speaks_for(self, name: str) -> bool:
        """Whether a tensor of this stage, or what belongs to one, is counted, written and sent by this stage: what two
        have, the first does."""
        return self.group.rank() == 0 or not name.startswith(self.shared)

    def add_up(self, gradients: dict[str, torch.Tensor], device: torch.device) -> None:
        """Add up the gradients of what the first and the last pipeline stage share; in place. Both get the same bits:
        there are only two to add. Collective over the two."""
        last = self.group.size() - 1
        other = {0: last, last: 0}.get(self.group.rank())
        for name in self.shared if other is not None else ():
            gradient = gradients[name]
            own = gradient.to(device).contiguous()
            theirs = torch.empty_like(own)
            swapped = ((dist.isend, own), (dist.irecv, theirs))
            ways = [dist.P2POp(way, tensor, group=self.group, group_peer=other) for way, tensor in swapped]
            for work in dist.batch_isend_irecv(ways):
                work.wait()
            gradient.add_(theirs.to(gradient.device))

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
                result, mine = next(own)
                assert result == name, f"{result} in place of {name}"
                tensor.copy_(mine)
            dist.broadcast(tensor.view(torch.uint8), group=self.group, group_src=held.stage)
            yield name, tensor
        assert next(own, None) is None, "a tensor beyond those of the stage"
