"""What a step costs, fitted to what was measured, and what that says of a thousand hosts. Pure.

    data buffers      t(N) = compute + a + b · (M(N) + S(N)) / link + g · N
    one controller    t(N) = compute + a + b · 2 N B / link

B are the bytes of a pod's rows. M(N) is what the pod with most to send or to receive moves, about B (N-1)/N: the routes
are a function of the rows' lengths, so it is worked out and not fitted. A pod exchanges rows with as many others as its
share has rows, at most: what each of them costs stays the same as N grows, and is part of a. S(N) is what spreads: the
layouts of all rows, 32 bytes a row, go down the tree; every level sends them to its children over one link, the levels
one after the other. There is no log2 N beyond that: a level costs a message, milliseconds, and 1,024 hosts have two
below the root. Everything that the classic way moves goes through the controller's link, first all in, then all out.

a: seconds of what every step does; b: bytes on the wire for each byte of rows; g: what a pod more asks of the two cores
that all pods share here. Hosts have cores of their own, so a projection leaves g out.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rljob_worker.databuffer.routes.assignment import PLAIN_ROWS
from rljob_worker.databuffer.routes.job_tree import FAN_OUT
from scaled_jobs.load import Load, Measured

LAYOUT_ROW_BYTES = 32
COMPRESSED = 1 / 6
"""Of the layouts of more than PLAIN_ROWS rows, about."""


@dataclass(frozen=True)
class Model:
    """a, b and g, none of them negative; g is 0 for one controller."""

    is_central: bool
    fixed: float
    bytes_factor: float
    shared_cores: float

    @staticmethod
    def fit(measured: Sequence[Measured], *, is_central: bool) -> Model:
        """Least squares over all points, each relative to what was measured."""
        terms = np.array([_terms(each.load, is_central) for each in measured])
        seconds = np.array([each.step_seconds - each.load.compute_seconds for each in measured])
        weights = 1 / np.array([each.step_seconds for each in measured])
        found = least_squares(terms * weights[:, None], seconds * weights)
        return Model(is_central, *found.tolist(), *([0.0] if is_central else []))

    def seconds(self, load: Load, *, own_cores: bool) -> float:
        """Of a step, where pods share two cores or where each has its own."""
        terms = [*_terms(load, self.is_central), 0.0][:3]
        costs = (self.fixed, self.bytes_factor, 0.0 if own_cores else self.shared_cores)
        return load.compute_seconds + sum(term * cost for term, cost in zip(terms, costs, strict=True))

    def shown(self) -> str:
        link = "2 N B / link" if self.is_central else "(M(N) + S(N)) / link"
        last = "" if self.is_central else f" + {self.shared_cores:.4f} s · N"
        return f"t(N) = compute + {self.fixed:.3f} s + {self.bytes_factor:.3f} · {link}{last}"


def _terms(load: Load, is_central: bool) -> list[float]:
    if is_central:
        return [1.0, 2 * load.pods * load.link_seconds]
    moved = load.most_moved_bytes() + spread_bytes(load.pods, load.pods * load.rows)
    return [1.0, moved * 8 / (load.megabits * 1e6), float(load.pods)]


def spread_bytes(pods: int, rows: int) -> float:
    """Bytes that leave one after the other until the last of so many pods has the layouts of all rows."""
    layout = rows * LAYOUT_ROW_BYTES * (COMPRESSED if rows > PLAIN_ROWS else 1.0)
    position, copies = 0, 0  # along the first children, who have the most below them
    while position < pods:
        copies += max(0, min(FAN_OUT, pods - 1 - position * FAN_OUT))
        position = position * FAN_OUT + 1
    return layout * copies


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
