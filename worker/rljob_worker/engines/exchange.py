"""All to all as a step of a computation: its gradient goes back the same way."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


def exchange(
    rows: torch.Tensor, group: dist.ProcessGroup, sent: list[int] | None = None, received: list[int] | None = None
) -> torch.Tensor:
    """Rows [sum(sent), ...], those for each rank in turn -> [sum(received), ...], in the order of the ranks; without
    numbers each rank sends and receives as many as every other."""
    found: torch.Tensor = _Exchange.apply(rows, group, sent, received)
    return found


class _Exchange(torch.autograd.Function):
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
