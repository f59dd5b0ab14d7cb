"""Metrics of one micro-batch, read from the device once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rljob_worker.metrics import scalars
from rljob_worker.metrics.scalars import Scalar


class MetricAccumulator:
    """Collects sums that live on the device and turns them into scalars with a single synchronisation."""

    def __init__(self) -> None:
        self._entries: list[tuple[str, Callable[..., Scalar | None], int]] = []
        self._numbers: list[Tensor] = []

    def mean(self, name: str, total: Tensor, count: Tensor | float) -> None:
        """A mean with this numerator and denominator, which may both be 0."""
        self._add(name, scalars.mean, total, torch.as_tensor(count, device=total.device))

    def mean_if_any(self, name: str, total: Tensor, count: Tensor) -> None:
        """A mean with this numerator and denominator, left out where the latter is 0."""
        self._add(name, _mean_if_any, total, count)

    def mean_of(self, name: str, values: Tensor) -> None:
        """The mean of a tensor over its elements."""
        self.mean(name, values.detach().sum(dtype=torch.float64), values.numel())

    def maximum(self, name: str, values: Tensor) -> None:
        """The largest element; left out when there is none."""
        if values.numel():
            self._add(name, scalars.maximum, values.detach().max())

    def scalars(self) -> dict[str, Scalar]:
        """Everything tallied, by name."""
        numbers = iter(torch.stack([number.double() for number in self._numbers]).tolist() if self._numbers else [])
        metrics = {name: build(*(next(numbers) for _ in range(size))) for name, build, size in self._entries}
        return {name: scalar for name, scalar in metrics.items() if scalar is not None}

    def _add(self, name: str, build: Callable[..., Scalar | None], *numbers: Tensor) -> None:
        self._entries.append((name, build, len(numbers)))
        self._numbers.extend(number.detach() for number in numbers)


def _mean_if_any(total: float, count: float) -> Scalar | None:
    return scalars.mean(total, count) if count else None
