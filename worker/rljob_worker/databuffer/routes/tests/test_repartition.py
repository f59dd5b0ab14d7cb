"""Repartition: every row once, groups whole, cost bounded, one answer for any order of the rows."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rljob_worker.databuffer.routes import repartition


def balanced(tokens, parts, *, groups=None, mini=None, whole=False, order=None, rows_per_trajectory=1):
    rows = np.arange(len(tokens))
    groups = rows if groups is None else np.asarray(groups)
    mini = np.zeros(len(tokens), np.int64) if mini is None else np.asarray(mini)
    order = rows if order is None else order
    costs = repartition.row_costs(np.asarray(tokens), "Tokens")
    chosen = repartition.balanced(
        rows[order],
        groups[order],
        costs[order],
        mini[order],
        parts=parts,
        whole_groups=whole,
        rows_per_trajectory=rows_per_trajectory,
    )
    back = np.empty(len(rows), np.int64)
    back[order] = chosen
    return back


def test_longest_first_by_hand():
    # falling cost: 9 -> part 0, 7 -> part 1, 4 -> part 1 (7 < 9), 3 -> part 0 (9 < 11), 2 -> part 1 (11 < 12)
    assert balanced([4, 9, 2, 7, 3], 2).tolist() == [1, 0, 1, 1, 0]


def test_equal_costs_go_round_and_ties_follow_row_ids():
    assert balanced([5, 5, 5, 5], 4).tolist() == [0, 1, 2, 3]


def test_rows_without_tokens_are_spread_too():
    assert sorted(balanced([0] * 6, 3).tolist()) == [0, 0, 1, 1, 2, 2]


def test_whole_groups_stay_together_by_hand():
    # groups cost 2 + 2, 5 + 1, 3 + 4: longest first 7 -> 0, 6 -> 1, 4 -> 1
    assert balanced([2, 2, 5, 1, 3, 4], 2, groups=[0, 0, 1, 1, 2, 2], whole=True).tolist() == [1, 1, 1, 1, 0, 0]


def test_rows_of_a_trajectory_stay_together_by_hand():
    # trajectories of two rows cost 2 + 2, 5 + 1, 3 + 4: as the groups above, and in no order of their rows
    order = np.array([5, 0, 3, 1, 4, 2])
    chosen = balanced([2, 2, 5, 1, 3, 4], 2, groups=[0] * 6, rows_per_trajectory=2, order=order)
    assert chosen.tolist() == [1, 1, 1, 1, 0, 0]


def test_a_second_mini_batch_starts_where_the_first_left_least():
    # mini-batch 0: 8 -> part 0, 1 -> part 1; mini-batch 1 has one row: part 1 has less over both
    assert balanced([8, 1, 5], 2, mini=[0, 0, 1]).tolist() == [0, 1, 1]


def test_attention_costs_grow_with_the_square():
    costs = repartition.row_costs(np.array([0, 1, 1000]), "Attention")
    assert costs.tolist() == [8193, 8193, 1_000_000 + 8_192_000]


batches = st.integers(1, 60).flatmap(
    lambda rows: st.tuples(
        st.lists(st.integers(0, 5000), min_size=rows, max_size=rows),
        st.lists(st.integers(0, 2), min_size=rows, max_size=rows),
        st.integers(1, 9),
        st.integers(1, 4),
        st.booleans(),
        st.permutations(list(range(rows))),
    )
)


@given(batches)
def test_the_same_answer_for_any_order_and_never_more_than_mean_plus_largest(case):
    tokens, mini, parts, group_size, whole, order = case
    groups = np.arange(len(tokens)) // group_size
    mini = np.asarray(mini)[groups]  # a mini-batch is a function of the group
    chosen = balanced(tokens, parts, groups=groups, mini=mini, whole=whole)
    assert np.array_equal(
        chosen, balanced(tokens, parts, groups=groups, mini=mini, whole=whole, order=np.asarray(order))
    )
    assert chosen.min() >= 0 and chosen.max() < parts
    costs = repartition.row_costs(np.asarray(tokens), "Tokens")
    for number in np.unique(mini):
        inside = mini == number
        loads = np.bincount(chosen[inside], costs[inside], minlength=parts)
        items = np.bincount(groups[inside], costs[inside]) if whole else costs[inside]
        assert loads.max() <= loads.mean() + (1 - 1 / parts) * items.max() + 1e-6
    if whole:
        assert all(len(set(chosen[groups == group])) == 1 for group in np.unique(groups))


@given(batches)
def test_every_row_goes_where_least_lies_then_where_least_lay_before_then_to_the_first_part(case):
    tokens, mini, parts, _, _, _ = case
    rows, mini = np.arange(len(tokens)), np.asarray(mini)
    costs = repartition.row_costs(np.asarray(tokens), "Tokens")
    expected, before = np.zeros(len(rows), np.int64), [0] * parts
    for number in sorted(set(mini.tolist())):
        loads = [0] * parts
        for row in sorted(rows[mini == number].tolist(), key=lambda row: (-costs[row], row)):
            chosen = min(range(parts), key=lambda part: (loads[part], before[part], part))
            expected[row] = chosen
            loads[chosen] += int(costs[row])
        before = [a + b for a, b in zip(before, loads, strict=True)]
    assert balanced(tokens, parts, mini=mini).tolist() == expected.tolist()


def test_the_longest_rows_there_are_do_not_overflow():
    # 2,000,000 tokens cost 4e12 each by attention, times 4,096 parts 1.6e16 and 512 rows of them 8e18
    costs = repartition.row_costs(np.full(5000, 2_000_000), "Attention")
    rows = np.arange(5000)
    chosen = repartition.balanced(rows, rows, costs, rows * 0, parts=4096)
    assert np.bincount(chosen, minlength=4096).max() == 2 and chosen[:4096].tolist() == list(range(4096))


@given(st.integers(1, 64), st.integers(1, 32))
def test_ordinal_ranges_are_what_by_ordinal_gives(batch_size, parts):
    owners = repartition.by_ordinal(np.arange(batch_size) + 3 * batch_size, parts=parts, batch_size=batch_size)
    for part in range(parts):
        first, last = repartition.ordinal_range(part, parts=parts, batch_size=batch_size)
        assert np.flatnonzero(owners == part).tolist() == list(range(first, last))
