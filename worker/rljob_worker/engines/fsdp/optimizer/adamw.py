"""Steps of AdamW (Loshchilov & Hutter 2019, https://arxiv.org/abs/1711.05101) over local tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Protocol

import torch

from rljob_worker.engines.fsdp.optimizer.states import MEANS, Mean
from rljob_worker.engines.fsdp.settings import TrainSettings

_EPSILON = 1e-8
CHUNK_ELEMENTS = 1 << 24
"""Numbers that are stepped at once where means are rounded: a step has some ten temporary copies of them."""

Means = Mapping[torch.nn.Parameter, Mapping[str, Mean]]


class AdamW(Protocol):
    """Steps parameters from their gradients with means that are given to it."""

    def step(self, learning_rate: float, num_steps: int) -> None:
        """num_steps: how many there were with this one."""
        ...


def adamw_of(means: Means, settings: TrainSettings) -> AdamW:
    return FusedAdamW(means, settings) if settings.states == "Float32" else RoundingAdamW(means, settings)


class FusedAdamW:
    """torch's fused kernel, which devices and CPUs have."""

    def __init__(self, means: Means, settings: TrainSettings) -> None:
        self._adamw = torch.optim.AdamW(
            means, betas=settings.betas, eps=_EPSILON, weight_decay=settings.weight_decay, fused=True
        )
        for local, found in means.items():
            steps = torch.zeros((), dtype=torch.float32, device=local.device)
            self._adamw.state[local] = {"step": steps, **{name: mean.kept[""] for name, mean in found.items()}}

    def step(self, learning_rate: float, num_steps: int) -> None:
        self._adamw.param_groups[0]["lr"] = learning_rate
        for state in self._adamw.state.values():
            state["step"].fill_(num_steps - 1)  # the kernel counts this one
        self._adamw.step()


class RoundingAdamW:
    """Computes in Float32 what it keeps in fewer bytes, some rows of a parameter at a time."""

    def __init__(self, means: Means, settings: TrainSettings) -> None:
        self._means, self._settings = means, settings

    def step(self, learning_rate: float, num_steps: int) -> None:
        with torch.no_grad():
            for local, means in self._means.items():
                if local.grad is not None:
                    of_local = [means[name] for name in MEANS]
                    for rows in _chunks(local.shape):
                        self._step(local[rows], local.grad[rows], of_local, rows, learning_rate, num_steps)

    def _step(
        self, own: torch.Tensor, gradient: torch.Tensor, means: list[Mean], rows: slice, rate: float, num_steps: int
    ) -> None:
        """m = b1 m + (1 - b1) g, v = b2 v + (1 - b2) g^2, w = (1 - rate decay) w - rate m' / (sqrt(v') + eps), with
        m' = m / (1 - b1^t) and v' = v / (1 - b2^t)."""
        first, second = (mean.read(rows, own.dtype) for mean in means)
        beta1, beta2 = self._settings.betas
        first.lerp_(gradient, 1 - beta1)
        second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        for mean, numbers in zip(means, (first, second), strict=True):
            mean.write(rows, numbers)
        spread = second.sqrt_().div_(math.sqrt(1 - beta2**num_steps)).add_(_EPSILON)
        own.mul_(1 - rate * self._settings.weight_decay)
        own.addcdiv_(first, spread, value=-rate / (1 - beta1**num_steps))


def _chunks(shape: torch.Size) -> Iterator[slice]:
    """Of rows."""
    rows = max(1, CHUNK_ELEMENTS // max(1, math.prod(shape[1:])))
    return (slice(start, start + rows) for start in range(0, shape[0], rows))
