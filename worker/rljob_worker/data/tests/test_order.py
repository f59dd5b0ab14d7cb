"""The order of prompts: every row once per epoch, whoever reads it and wherever it starts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_worker.data.order import Order
from rljob_worker.stages.draws.assembly import share_of_rank

orders = st.builds(Order, num_rows=st.integers(1, 300), seed=st.integers(-3, 2**64 + 3), block_rows=st.integers(1, 40))


@given(orders, st.integers(0, 5))
def test_an_epoch_holds_every_row_once(order, epoch):
    rows = order.index_of(np.arange(order.num_rows) + epoch * order.num_rows)
    assert sorted(rows) == list(range(order.num_rows))


@settings(max_examples=12)
@given(orders, st.integers(1, 50), st.integers(1, 7))
def test_reading_does_not_depend_on_the_number_of_readers_or_the_place_of_restart(order, batch_size, readers):
    whole = order.index_of(np.arange(3 * batch_size))
    # rank d of a step reads the contiguous share [d * N // D, (d + 1) * N // D); a restart after step 1 reads on at N
    cuts = [step * batch_size + d * batch_size // readers for step in range(3) for d in range(readers)]
    parts = [order.index_of(np.arange(a, b)) for a, b in zip(cuts, [*cuts[1:], 3 * batch_size], strict=True)]
    assert np.concatenate(parts).tolist() == whole.tolist()
    assert order.index_of(np.arange(batch_size, 3 * batch_size)).tolist() == whole[batch_size:].tolist()


@settings(max_examples=10)
@given(
    order=orders,
    batch_size=st.integers(1, 40),
    lives=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 3)), min_size=1, max_size=4),
)
def test_a_step_has_the_same_rows_whatever_the_world_size_of_each_life_of_the_job(order, batch_size, lives):
    # lives: so many ranks do so many steps, and then the job goes on with another number of them
    step = 0
    for num_ranks, num_steps in lives:
        for _ in range(num_steps):
            batch = np.arange(step * batch_size, (step + 1) * batch_size)
            shares = [order.index_of(share_of_rank(batch, rank, num_ranks)) for rank in range(num_ranks)]
            assert np.concatenate(shares).tolist() == order.index_of(batch).tolist()
            assert max(map(len, shares)) - min(map(len, shares)) <= 1, "nobody reads more than its share"
            step += 1


def test_a_batch_that_crosses_the_end_of_an_epoch_takes_up_the_next():
    order = Order(num_rows=10, seed=3)
    batches = [order.index_of(np.arange(s * 4, s * 4 + 4)) for s in range(5)]
    rows = np.concatenate(batches)
    assert sorted(rows[:10]) == sorted(rows[10:]) == list(range(10))
    assert rows[:10].tolist() != rows[10:].tolist()


def test_blocks_stay_together_and_are_permuted():
    rows = Order(num_rows=40, seed=1, block_rows=8).index_of(np.arange(40)).reshape(5, 8)
    blocks = rows // 8
    assert (blocks == blocks[:, :1]).all()
    assert blocks[:, 0].tolist() != sorted(blocks[:, 0])
    assert rows[0].tolist() != sorted(rows[0])


def test_without_a_seed_rows_come_in_order():
    assert Order(num_rows=3, seed=None).index_of(np.arange(7)).tolist() == [0, 1, 2, 0, 1, 2, 0]


def test_the_order_is_that_of_the_seed_for_ever():
    # Written down: a change of these numbers breaks the resume of running jobs.
    assert Order(num_rows=10, seed=0).index_of(np.arange(10)).tolist() == EXPECTED_SEED_0
    assert Order(num_rows=10, seed=1).index_of(np.arange(10)).tolist() != EXPECTED_SEED_0


EXPECTED_SEED_0 = [5, 3, 2, 8, 6, 1, 0, 9, 7, 4]


@pytest.mark.parametrize("num_rows", [2, 5, 16, 37])
def test_every_place_gets_every_row_about_as_often(num_rows):
    epochs = 4000
    rows = Order(num_rows, seed=0).index_of(np.arange(epochs * num_rows)).reshape(epochs, num_rows)
    counts = np.stack([np.bincount(rows[:, place], minlength=num_rows) for place in range(num_rows)])
    expected = epochs / num_rows
    # a count is binomial: its standard deviation is below sqrt(expected); five of them bound all num_rows ** 2 counts
    assert np.abs(counts - expected).max() < 5 * np.sqrt(expected)


def test_seeds_give_different_orders():
    firsts = [tuple(Order(5, seed).index_of(np.arange(5)).tolist()) for seed in range(400)]
    # 120 permutations, 400 draws: 120 * (1 - exp(-400 / 120)) = 116 different ones expected
    assert len(set(firsts)) > 105


def test_neighbours_in_an_epoch_are_not_neighbours_in_the_data():
    rows = Order(num_rows=10_000, seed=7).index_of(np.arange(10_000))
    assert np.corrcoef(rows, np.arange(10_000))[0, 1] == pytest.approx(0, abs=0.05)
    assert (np.abs(np.diff(rows)) == 1).sum() < 20  # 2 expected


def test_epochs_are_independent():
    order = Order(num_rows=10_000, seed=7)
    first, second = order.index_of(np.arange(20_000)).reshape(2, -1)
    assert np.corrcoef(first, second)[0, 1] == pytest.approx(0, abs=0.05)


def test_a_large_data_set_costs_nothing_to_order():
    order = Order(num_rows=10**11, seed=7)
    rows = order.index_of(np.arange(5 * 10**10, 5 * 10**10 + 1000))
    assert len(set(rows.tolist())) == 1000 and rows.max() < 10**11
