"""What ranks send each other in the middle of a computation: all to all, whose gradient goes back the same way, and
round a ring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist


def exchange(
    rows: torch.Tensor, group: dist.ProcessGroup, sent: list[int] | None = None, received: list[int] | None = None
) -> torch.Tensor:
    """Rows [sum(sent), ...], those for each rank in turn -> [sum(received), ...], in the order of the ranks; without
    numbers each rank sends and receives as many as every other."""
    apply: torch.Tensor = _Exchange.apply(rows, group, sent, received)
    return apply


class _Exchange(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, group: dist.ProcessGroup, sent: list[int] | None, received: list[int] | None
    ) -> torch.Tensor:
        ctx.group, ctx.sent, ctx.received = group, sent, received
        return _exchanged(rows, group, sent, received)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        return _exchanged(gradients[0], ctx.group, ctx.received, ctx.sent), None, None, None


def _exchanged(
    rows: torch.Tensor, group: dist.ProcessGroup, sent: list[int] | None, received: list[int] | None
) -> torch.Tensor:
    arrived = rows.new_empty((len(rows) if received is None else sum(received), *rows.shape[1:]))
    dist.all_to_all_single(arrived, rows.contiguous(), received, sent, group=group)
    return arrived


@dataclass(frozen=True, slots=True)
class Shift:
    """A tensor on its way from each rank to the next, from the last to the first."""

    sent: torch.Tensor
    """Not to be written to until it has arrived."""
    arriving: torch.Tensor
    works: list[dist.Work]

    @staticmethod
    def start(rows: torch.Tensor, group: dist.ProcessGroup, tag: int = 0, into: torch.Tensor | None = None) -> Shift:
        """rows: of one shape on all ranks, which start the same shifts in the same order. tag: what else is on its way
        meanwhile has another. into: where what arrives is put, else new memory."""
        sent, rank, size = rows.contiguous(), group.rank(), group.size()
        arriving = torch.empty_like(sent) if into is None else into
        sending = dist.P2POp(dist.isend, sent, group=group, tag=tag, group_peer=(rank + 1) % size)
        receiving = dist.P2POp(dist.irecv, arriving, group=group, tag=tag, group_peer=(rank - 1) % size)
        return Shift(sent, arriving, dist.batch_isend_irecv([sending, receiving]))

    def arrived(self) -> torch.Tensor:
        """What the rank before sent, once it is here and what this one sent is there."""
        for work in self.works:
            work.wait()
        return self.arriving
