"""One number of a metric as it travels between processes, mergeable in any order.

A worker reports what it saw; ranks and micro-batches are combined by `Scalar.merge`, never by averaging averages:

    mean(sum=6.0, count=3)  merged with  mean(sum=2.0, count=1)   ->   mean(sum=8.0, count=4)   ->   value 2.0
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from numpy.typing import NDArray


Kind = Literal["mean", "total", "maximum"]


@dataclass(frozen=True, slots=True)
class Scalar:
    """A mean (sum over count), a total, or a maximum."""

    kind: Kind
    sum: float
    count: float
    max: float
    rest: float = 0.0
    """What `sum` leaves of the exact sum, where that is kept; whatever is merged with it keeps it, too."""

    @property
    def value(self) -> float:
        """The number a person reads; NaN for a mean of nothing."""
        if self.kind == "maximum":
            return self.max
        if self.kind == "total":
            return self.sum
        return self.sum / self.count if self.count else math.nan

    @staticmethod
    def merge(parts: Iterable[Scalar], *, exactly: bool = False) -> Scalar:
        """Combine one metric of several processes or micro-batches; refuses a mix of kinds. exactly: keep what the sum
        leaves of the exact one: with twice a float's digits it does not matter in which groups parts are merged."""
        parts = list(parts)
        kinds = {part.kind for part in parts}
        assert len(kinds) == 1, f"one metric has several kinds: {sorted(kinds)}"
        rests = [part.rest for part in parts if part.rest]
        numbers = [part.sum for part in parts] + rests
        total = _sum(numbers)
        keeps_rest = (exactly or rests) and math.isfinite(total)
        return Scalar(
            parts[0].kind,
            total,
            _sum([part.count for part in parts]),
            _largest([part.max for part in parts]),
            _sum([*numbers, -total]) if keeps_rest else 0.0,
        )


Scalars = dict[str, Scalar]


def _sum(values: list[float]) -> float:
    """A sum that does not depend on the order in which ranks answered; NaN for infinities of both signs."""
    try:
        return math.fsum(values)
    except ValueError:
        return math.nan
    except OverflowError:
        return math.inf if sum(value / len(values) for value in values) > 0 else -math.inf


def _largest(values: list[float]) -> float:
    """NaN as soon as one is, which `max` would let depend on the order."""
    return math.nan if any(map(math.isnan, values)) else max(values)


def mean(total: float, count: float = 1.0) -> Scalar:
    """A mean over `count` things whose sum is `total`."""
    return Scalar("mean", float(total), float(count), float(total) / count if count else -math.inf)


def mean_of(values: NDArray[Any], *, exactly: bool = False) -> Scalar:
    """The mean of numbers [n], summed in float64 whatever they are: a float32 sum of a rank's own would depend on which
    ranks have which. exactly: with what the sum leaves of the exact one, as in `Scalar.merge`."""
    total = float(values.sum(dtype=float))
    result = mean(total, len(values))
    if not exactly or not math.isfinite(total):
        return result
    return replace(result, rest=_sum([*map(float, values.tolist()), -total]))


def total(value: float) -> Scalar:
    """A quantity that adds up over ranks, such as bytes."""
    return Scalar("total", float(value), 1.0, float(value))


def maximum(value: float) -> Scalar:
    """A quantity of which the largest counts."""
    return Scalar("maximum", float(value), 1.0, float(value))


def merge_all(parts: Iterable[Mapping[str, Scalar]], *, exactly: bool = False) -> Scalars:
    """Merge dictionaries of scalars by name; a name that only some of them have is kept. exactly: as in `merge`."""
    by_name: dict[str, list[Scalar]] = {}
    for part in parts:
        for name, scalar in part.items():
            by_name.setdefault(name, []).append(scalar)
    return {name: Scalar.merge(scalars, exactly=exactly) for name, scalars in by_name.items()}


def means_by_source(
    name: str, values: NDArray[np.float64], sources: Sequence[str], *, exactly: bool = False
) -> Scalars:
    """One metric `name/source` for each data set that has values; values and sources are [rows]. exactly: as in
    `mean_of`.

    accuracy, [1, 0, 1], [a, b, a] -> {accuracy/a: mean of 1 and 1, accuracy/b: mean of 0}
    """
    homes = np.array(sources, dtype=object)
    mine = {source: values[homes == source] for source in sorted(set(sources))}
    return {f"{name}/{source}": mean_of(result, exactly=exactly) for source, result in mine.items()}
