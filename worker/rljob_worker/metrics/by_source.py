"""Means over the rows of each data set."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rljob_worker.metrics.scalars import Scalars, mean_of


def means_by_source(name: str, values: NDArray[np.float64], sources: Sequence[str]) -> Scalars:
    """One metric `name/source` for each data set that has values; values and sources are [rows].

    accuracy, [1, 0, 1], [a, b, a] -> {accuracy/a: mean of 1 and 1, accuracy/b: mean of 0}
    """
    homes = np.array(sources, dtype=object)
    mine = {source: values[homes == source] for source in sorted(set(sources))}
    return {f"{name}/{source}": mean_of(found) for source, found in mine.items()}
