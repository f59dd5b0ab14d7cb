"""Which source the n-th prompt of a mixture comes from, and which of its prompts that is: a formula of n.

    weights 3 and 1:    ordinal    0 1 2 3   4 5 6 7
                        source     A A B A   A A B A
                        its draw   0 1 0 2   3 4 1 5

Sources follow one another in a round that repeats, in which each has as many places as its weight says. Places are
dealt out so that no source is ever a whole prompt ahead of its share or behind it: a step has the shares of the weights
up to rounding, whatever its size, and so has every part of the run. Each source has an order of its own and begins its
next pass when its rows are used up, whatever the others do. The ordinal stays the whole state.

R. Tijdeman, "The chairman assignment problem", Discrete Mathematics 32 (1980): of those that may take the next place
without getting ahead, the one that would be behind first takes it. With k sources the distance to the share is at most
1 - 1 / (2k - 2).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import gcd, lcm

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rljob_worker.data.order import Indices, Order

LONGEST_ROUND = 10_000
"""Places. Weights that need more are rounded to what this many can tell apart."""


class Mixture:
    """The rows of several sources, listed one source after another, in the order of the job.

    weights: of each source, relative to one another; 0 for one of which nothing is drawn.   num_rows: of each source;
    one that is drawn from has at least one row.   seed: None reads every source in order.
    """

    def __init__(self, weights: Sequence[float], num_rows: Sequence[int], seed: int | None) -> None:
        self.places = places_per_round(weights)
        self._turns = turns_of(self.places)
        self._draws = np.zeros_like(self._turns)
        for source, count in enumerate(self.places):
            self._draws[self._turns == source] = np.arange(count)
        self._starts = np.cumsum([0, *num_rows])
        self._orders = {
            source: Order(num_rows[source], None if seed is None else seed * len(self.places) + source)
            for source, count in enumerate(self.places)
            if count
        }

    def index_of(self, ordinals: ArrayLike) -> Indices:
        """The rows of these ordinals, in the list of all sources: int64 [n] -> int64 [n]."""
        ordinal = np.asarray(ordinals, np.int64).reshape(-1)
        assert not (ordinal < 0).any(), "ordinals count from 0"
        turn, place = np.divmod(ordinal, len(self._turns))
        sources = self._turns[place]
        rows = np.empty_like(ordinal)
        for source, order in self._orders.items():
            here = sources == source
            draws = turn[here] * self.places[source] + self._draws[place[here]]
            rows[here] = self._starts[source] + order.index_of(draws)
        return rows


def places_per_round(weights: Sequence[float]) -> tuple[int, ...]:
    """Places in a round of each source, the fewest that have the weights' shares: 0.7, 0.2, 0.1 -> 7, 2, 1.

    Where those are too many, the largest remainders of `LONGEST_ROUND`, and at least one for a weight above 0.
    """
    exact = [Fraction(str(weight)) for weight in weights]
    assert any(exact) and min(exact) >= 0, "a mixture draws from something"
    scale = lcm(*(item.denominator for item in exact))
    counts = [int(item * scale) for item in exact]
    counts = [count // gcd(*counts) for count in counts]
    return tuple(counts) if sum(counts) <= LONGEST_ROUND else _rounded(counts)


def _rounded(counts: Sequence[int]) -> tuple[int, ...]:
    quotas = [Fraction(count * LONGEST_ROUND, sum(counts)) for count in counts]
    places = [max(int(quota), int(quota > 0)) for quota in quotas]
    missing = LONGEST_ROUND - sum(places)
    by_remainder = sorted(range(len(places)), key=lambda source: places[source] - quotas[source])
    for source in by_remainder[: max(missing, 0)]:
        places[source] += 1
    places[int(np.argmax(places))] += min(missing, 0)  # what the smallest were given beyond their share
    return tuple(places)


def turns_of(places: Sequence[int]) -> NDArray[np.int64]:
    """The source of each place of a round."""
    drawn_from = np.flatnonzero(places)
    share = np.asarray(places, np.int64)[drawn_from]
    length, slack = int(share.sum()), max(2 * len(share) - 2, 1)
    turns, taken = np.empty(length, np.int64), np.zeros_like(share)
    for place in range(length):
        due = share * (place + 1) - taken * length  # in places, times the length of a round
        until_behind = (length * (slack - 1) - due * slack) / share
        until_behind[due * slack < length] = np.inf
        turns[place] = np.argmin(until_behind)
        taken[turns[place]] += 1
    return drawn_from[turns]
