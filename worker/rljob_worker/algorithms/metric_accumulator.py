"""Metrics of micro-batches, which stay on the device until they are all read at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rljob_worker.metrics import scalars
from rljob_worker.metrics.scalars import Scalar


@dataclass(frozen=True, slots=True)
class Measured:
    """What one micro-batch measured, by name; `read_all` tells the numbers."""

    entries: tuple[tuple[str, Callable[..., Scalar | None], tuple[float | None, ...]], ...] = ()
    """Name, what the numbers make, and the numbers; None is the next one of `on_device`."""
    on_device: Tensor | None = None
    """float64 [numbers]; None without any."""

    def scalars(self, on_device: Sequence[float]) -> dict[str, Scalar]:
        """By name, from the numbers that were on the device."""
        following = iter(on_device)
        metrics = {
            name: build(*(next(following) if number is None else number for number in numbers))
            for name, build, numbers in self.entries
        }
        return {name: scalar for name, scalar in metrics.items() if scalar is not None}


def read_all(measured: Sequence[Measured]) -> list[dict[str, Scalar]]:
    """The metrics of each, from one copy to the host, which waits for the device."""
    parts = [item.on_device for item in measured if item.on_device is not None]
    numbers = iter(torch.cat(parts).cpu().tolist() if parts else [])
    counts = (0 if item.on_device is None else len(item.on_device) for item in measured)
    return [item.scalars([next(numbers) for _ in range(count)]) for item, count in zip(measured, counts, strict=True)]


class MetricAccumulator:
    """Collects sums that live on the device. Nothing waits for it before they are read."""

    def __init__(self) -> None:
        self._entries: list[tuple[str, Callable[..., Scalar | None], tuple[float | None, ...]]] = []
        self._on_device: list[Tensor] = []

    def mean(self, name: str, total: Tensor, count: Tensor | float) -> None:
        """A mean with this numerator and denominator, which may both be 0. count: a number where the host knows it."""
        self._add(name, scalars.mean, total, count)

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

    def measured(self) -> Measured:
        """Everything tallied, still on the device."""
        numbers = [number.double() for number in self._on_device]
        return Measured(tuple(self._entries), torch.stack(numbers) if numbers else None)

    def scalars(self) -> dict[str, Scalar]:
        """Everything tallied, by name; waits for the device."""
        return read_all([self.measured()])[0]

    def _add(self, name: str, build: Callable[..., Scalar | None], *numbers: Tensor | float) -> None:
        known = tuple(None if isinstance(number, Tensor) else number for number in numbers)
        self._entries.append((name, build, known))
        self._on_device.extend(number.detach() for number in numbers if isinstance(number, Tensor))


def _mean_if_any(total: float, count: float) -> Scalar | None:
    return scalars.mean(total, count) if count else None
