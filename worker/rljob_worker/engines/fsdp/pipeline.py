"""Pipeline parallelism: ranks of a copy have layers one after another, through which micro-batches go in turn.

Each stage begins with the backward pass of a micro-batch as soon as it can, so that few are on their way (1F1B,
Narayanan et al., https://arxiv.org/abs/2104.04473). Three stages, four micro-batches, forward and backward:

    stage 0   F0 F1 F2 B0 F3 B1 B2 B3
    stage 1   F0 F1 B0 F2 B1 F3 B2 B3
    stage 2   F0 B0 F1 B1 F2 B2 F3 B3

All stages make the same micro-batches of the same rows, so that each knows the shape of what arrives. What comes out of
the last stage is reported to all of the copy, each of which computes the same figures of it; the last stage begins the
backward pass.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.distributed as dist

from rljob_worker.engines.deterministic import strict_backward
from rljob_worker.engines.micro_batch import MicroBatch
from rljob_worker.engines.parallel.mesh import ProcessMesh, group_beside

Pass = tuple[Literal["forward", "backward"], int]


def pipeline_passes(stage: int, num_stages: int, num_runs: int) -> Iterator[Pass]:
    """Passes of one pipeline stage, in order; the number is the micro-batch's. For a model in one piece: forward,
    backward in turn."""
    ahead = min(num_stages - stage - 1, num_runs)
    for index in range(num_runs + ahead):
        if index < num_runs:
            yield "forward", index
        if index >= ahead:
            yield "backward", index - ahead


class MicroBatchPipeline:
    """One stage's place, and what it says to the others of its copy. A model in one piece is its first stage and its
    last."""

    def __init__(self, mesh: ProcessMesh, width: int, dtype: torch.dtype) -> None:
        """width: of hidden states, which travel as `dtype`."""
        self._device, self._width, self._dtype = mesh.device, width, dtype
        self._onward = mesh.group("pp")
        # gradients go the other way apart: sends of both ways in one queue could wait for each other
        self._back = None if self._onward is None else group_beside(self._onward)
        self.stage: int = 0 if self._onward is None else self._onward.rank()
        self.size: int = 1 if self._onward is None else self._onward.size()
        self._sent: deque[_Sent] = deque()

    @property
    def is_last(self) -> bool:
        return self.stage == self.size - 1

    def arrived(self, rows: MicroBatch) -> MicroBatch:
        """With the hidden states [1, own tokens, hidden] that the stage before made of them, if there is one."""
        if self.stage == 0:
            return rows
        hidden = torch.empty(1, rows.token_ids.shape[1], self._width, dtype=self._dtype, device=self._device)
        _receive(hidden, self._onward, self.stage - 1)
        return replace(rows, arrived=hidden.requires_grad_(torch.is_grad_enabled()))

    def send(self, hidden: torch.Tensor) -> None:
        """To the next stage."""
        assert hidden.dtype == self._dtype, f"hidden states of {hidden.dtype} in place of {self._dtype}"
        self._send(hidden.detach(), self._onward, self.stage + 1)

    def backward(self, end: torch.Tensor, rows: MicroBatch) -> None:
        """From the loss, or from what was sent, whose gradient comes back; to what arrived, whose gradient goes on."""
        gradient = None
        if not self.is_last:
            gradient = torch.empty_like(end)
            _receive(gradient, self._back, self.stage + 1)
        with strict_backward():
            end.backward(gradient)
        if rows.arrived is not None:
            assert rows.arrived.grad is not None
            self._send(rows.arrived.grad, self._back, self.stage - 1)

    def settle(self) -> None:
        """Until all that was sent is there."""
        while self._sent:
            self._sent.popleft().work.wait()

    def from_last(self, values: torch.Tensor) -> torch.Tensor:
        """What the last stage has, in the place of values of the same shape on the others; on the device, if there are
        others."""
        if self._onward is None:
            return values
        received = values.to(self._device)
        dist.broadcast(received, group=self._onward, group_src=self.size - 1)
        return received

    def _send(self, tensor: torch.Tensor, group: dist.ProcessGroup, to: int) -> None:
        whole = tensor.contiguous().view(torch.uint8)
        self._sent.append(_Sent(dist.isend(whole, group=group, group_dst=to), whole))
        if len(self._sent) > 2 * self.size:  # of which the first is there: what came back since was made of it
            self._sent.popleft().work.wait()


@dataclass(frozen=True, slots=True)
class _Sent:
    work: dist.Work
    tensor: torch.Tensor
    """Memory that must stay until it is there."""


def _receive(tensor: torch.Tensor, group: dist.ProcessGroup, source: int) -> None:
    """As bytes: not every backend knows every dtype."""
    dist.recv(tensor.view(torch.uint8), group=group, group_src=source)
