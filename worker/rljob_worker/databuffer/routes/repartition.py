"""Which data-parallel part gets a row: pure arithmetic, the same answer on every host and for any order of the rows.

Costs are integers and ties are broken by the smallest row id, so hosts agree without talking to each other.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]

ATTENTION_LINEAR_TOKENS = 8192
"""Length at which a row's attention costs as much as its matrix products: 6 x hidden size of a dense transformer, here
a hidden size of about 1,400."""


def by_ordinal(group_ids: Int64, *, parts: int, batch_size: int) -> Int64:
    """Part of every row by the ordinal of its prompt: i * parts // batch_size with i = group_id % batch_size."""
    return (np.asarray(group_ids, np.int64) % batch_size) * parts // batch_size


def ordinal_range(part: int, *, parts: int, batch_size: int) -> tuple[int, int]:
    """Prompts [first, last) of a batch that `by_ordinal` gives to `part`; it may be empty."""
    return -(-part * batch_size // parts), -(-(part + 1) * batch_size // parts)


def row_costs(num_tokens: Int64, balance: str) -> Int64:
    """Integer cost of every row: n for "Tokens", n * n + 8192 n for "Attention"; no tokens count as one."""
    tokens = np.maximum(np.asarray(num_tokens, np.int64), 1)
    assert balance in ("Tokens", "Attention"), balance
    return tokens if balance == "Tokens" else tokens * tokens + ATTENTION_LINEAR_TOKENS * tokens


def balanced(
    row_ids: Int64,
    group_ids: Int64,
    costs: Int64,
    mini_batches: Int64,
    *,
    parts: int,
    whole_groups: bool = False,
    rows_per_trajectory: int = 1,
) -> Int64:
    """Part of every row, balanced by cost inside each mini-batch: longest processing time first.

    All arrays are [rows], in any order. The rows of one trajectory get one part, with `whole_groups` those of a group.
    Inside every mini-batch the largest part costs at most mean + (1 - 1/parts) * largest item (Graham, 1969,
    https://doi.org/10.1137/0117039), an item being a trajectory, or a group with `whole_groups`.
    """
    items = _items(group_ids if whole_groups else row_ids // rows_per_trajectory, row_ids, costs, mini_batches)
    chosen = _longest_first(items, parts)
    return chosen[items.of_row]


@dataclass(frozen=True, slots=True)
class _Items:
    """What is placed as one: trajectories, or groups; `of_row` [rows] says which item a row belongs to."""

    first_row_id: Int64
    costs: Int64
    mini_batches: Int64
    of_row: Int64


def _items(keys: Int64, row_ids: Int64, costs: Int64, mini_batches: Int64) -> _Items:
    unique, of_row = np.unique(keys, return_inverse=True)
    first_row_id = np.full(len(unique), np.iinfo(np.int64).max)
    np.minimum.at(first_row_id, of_row, row_ids)
    total = np.zeros(len(unique), np.int64)
    np.add.at(total, of_row, costs)
    mini_batch = np.zeros(len(unique), np.int64)
    mini_batch[of_row] = mini_batches
    return _Items(first_row_id, total, mini_batch, of_row)


def _longest_first(items: _Items, parts: int) -> Int64:
    """Items in falling cost, each to the part with the least load; of equal loads, the one with less before wins."""
    chosen = np.zeros(len(items.costs), np.int64)
    before = np.zeros(parts, np.int64)
    for mini_batch in np.unique(items.mini_batches):
        members = np.flatnonzero(items.mini_batches == mini_batch)
        order = members[np.lexsort((items.first_row_id[members], -items.costs[members]))]
        by_rank = np.lexsort((np.arange(parts), before))
        chosen[order] = by_rank[_least_loaded(items.costs[order], parts)]
        np.add.at(before, chosen[order], items.costs[order])
    return chosen


def _least_loaded(costs: Int64, parts: int) -> list[int]:
    """Rank of the part that gets each item, in their order: that with the least load, of equal ones the least rank."""
    # load and rank in one integer, which compares several times as fast as a pair
    heap = list(range(parts))
    ranks = []
    for cost in (costs * parts).tolist():
        least = heap[0]
        ranks.append(least % parts)
        heapq.heapreplace(heap, least + cost)
    return ranks
