"""What a step costs, fitted to what was measured, and what that says of a thousand hosts. Pure.

    data buffers      t(N) = compute + a + b · B (N-1)/N / link + c · log2 N
    one controller    t(N) = compute + a + b · 2 N B / link

B are the bytes of a pod's rows: of these (N-1)/N leave it, while others come in over the same link's other direction.
Everything that the classic way moves goes through the controller's link, first all in and then all out. a: seconds of
what every step does; b: bytes on the wire for each byte of rows; c: seconds for each doubling, of layouts and reports
that climb the tree.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scaled_jobs.load import Load, Measured


@dataclass(frozen=True)
class Model:
    """a, b and c, none of them negative; c is 0 for one controller."""

    is_central: bool
    fixed: float
    bytes_factor: float
    doubling: float

    @staticmethod
    def fit(measured: Sequence[Measured], *, is_central: bool) -> Model:
        """Least squares over all points, each relative to what was measured."""
        terms = np.array([_terms(each.load, is_central) for each in measured])
        seconds = np.array([each.step_seconds - each.load.compute_seconds for each in measured])
        weights = 1 / np.array([each.step_seconds for each in measured])
        found = least_squares(terms * weights[:, None], seconds * weights)
        return Model(is_central, *found.tolist(), *([0.0] if is_central else []))

    def seconds(self, load: Load) -> float:
        """Of a step."""
        terms = [*_terms(load, self.is_central), 0.0][:3]
        costs = (self.fixed, self.bytes_factor, self.doubling)
        return load.compute_seconds + sum(term * cost for term, cost in zip(terms, costs, strict=True))

    def shown(self) -> str:
        link = "2 N B / link" if self.is_central else "B (N-1)/N / link"
        last = "" if self.is_central else f" + {self.doubling:.3f} s · log2 N"
        return f"t(N) = compute + {self.fixed:.3f} s + {self.bytes_factor:.3f} · {link}{last}"


def _terms(load: Load, is_central: bool) -> list[float]:
    if is_central:
        return [1.0, 2 * load.pods * load.link_seconds]
    return [1.0, load.link_seconds * (load.pods - 1) / load.pods, math.log2(load.pods)]


def least_squares(terms: NDArray[np.float64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Coefficients that are not negative: the best over all choices of those that are 0; few terms only."""
    best, least = np.zeros(terms.shape[1]), float((values**2).sum())
    for size in range(1, terms.shape[1] + 1):
        for chosen in map(list, itertools.combinations(range(terms.shape[1]), size)):
            found = np.linalg.lstsq(terms[:, chosen], values, rcond=None)[0]
            error = float(((terms[:, chosen] @ found - values) ** 2).sum())
            if (found >= 0).all() and error < least:
                best, least = np.zeros(terms.shape[1]), error
                best[chosen] = found
    return best
