"""Prompts of several sources by weight: the shares of every part of a run, and each source's rows in its own order."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_worker.data.mixture import LONGEST_ROUND, Mixture, places_per_round
from rljob_worker.stages.draws.assembly import share_of_rank

weights = st.lists(st.sampled_from([0, 0.1, 0.25, 1, 1.5, 2, 3, 7, 40]), min_size=1, max_size=7).filter(any)


@st.composite
def mixtures(draw):
    chosen = draw(weights)
    num_rows = [draw(st.integers(1, 60)) for _ in chosen]
    return chosen, num_rows, Mixture(chosen, num_rows, draw(st.one_of(st.none(), st.integers(-3, 2**64 + 3))))


def sources_of(mixture, num_rows, ordinals):
    return np.searchsorted(np.cumsum(num_rows), mixture.index_of(ordinals), side="right")


@given(mixtures(), st.integers(0, 10**9), st.integers(1, 300))
def test_every_part_of_a_run_has_the_shares_of_the_weights(mixed, first, length):
    chosen, num_rows, mixture = mixed
    counts = np.bincount(sources_of(mixture, num_rows, first + np.arange(length)), minlength=len(chosen))
    # each end of the part is less than a prompt from the share
    assert np.all(np.abs(counts - length * np.array(chosen) / sum(chosen)) < 2)
    drawn = sources_of(mixture, num_rows, np.arange(length))[:, None] == np.arange(len(chosen))
    shares = np.arange(1, length + 1)[:, None] * np.array(chosen) / sum(chosen)
    bound = 1 - 1 / max(2, 2 * np.count_nonzero(chosen) - 2)
    assert np.abs(drawn.cumsum(axis=0) - shares).max() <= bound + 1e-9


@given(mixtures(), st.integers(0, 3))
def test_a_source_gives_every_row_once_before_it_gives_one_again(mixed, epoch):
    chosen, num_rows, mixture = mixed
    # long enough for every source that is drawn from to be used up so many times
    length = int(max(60 * (epoch + 2) * sum(chosen) / weight for weight in chosen if weight))
    rows = mixture.index_of(np.arange(length))
    starts = np.cumsum([0, *num_rows])
    for source, weight in enumerate(chosen):
        drawn = rows[(rows >= starts[source]) & (rows < starts[source + 1])] - starts[source]
        passed = drawn[epoch * num_rows[source] : (epoch + 1) * num_rows[source]]
        assert sorted(passed) == (list(range(num_rows[source])) if weight else [])


@given(
    mixed=mixtures(),
    batch_size=st.integers(1, 40),
    lives=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 3)), min_size=1, max_size=4),
)
def test_a_step_has_the_same_rows_whatever_the_world_size_of_each_life_of_the_job(mixed, batch_size, lives):
    # lives: so many ranks do so many steps, and then the job goes on with another number of them
    mixture, step = mixed[2], 0
    for num_ranks, num_steps in lives:
        for _ in range(num_steps):
            batch = np.arange(step * batch_size, (step + 1) * batch_size)
            shares = [mixture.index_of(share_of_rank(batch, rank, num_ranks)) for rank in range(num_ranks)]
            assert np.concatenate(shares).tolist() == mixture.index_of(batch).tolist()
            step += 1


def test_the_order_is_that_of_weights_and_seed_for_ever():
    # Written down: a change of these numbers breaks the resume of running jobs.
    assert Mixture([3, 1], [4, 2], None).index_of(np.arange(12)).tolist() == [0, 1, 4, 2, 3, 0, 5, 1, 2, 3, 4, 0]
    assert Mixture([1, 1, 2], [9, 9, 9], None).index_of(np.arange(8)).tolist() == EXPECTED_IN_ORDER
    assert Mixture([3, 1], [4, 2], 0).index_of(np.arange(12)).tolist() == EXPECTED_SEED_0


EXPECTED_IN_ORDER = [18, 0, 9, 19, 20, 1, 10, 21]
EXPECTED_SEED_0 = [1, 3, 5, 2, 0, 2, 4, 1, 3, 0, 4, 1]


def test_sources_of_the_same_length_have_orders_of_their_own():
    rows = Mixture([1, 1], [50, 50], seed=1).index_of(np.arange(100))
    first, second = rows[rows < 50], rows[rows >= 50] - 50
    assert sorted(first) == sorted(second) == list(range(50))
    assert first.tolist() != second.tolist()


@pytest.mark.parametrize(
    ("given", "places"),
    [
        ([0.7, 0.2, 0.1], (7, 2, 1)),
        ([70, 20, 10], (7, 2, 1)),
        ([5], (1,)),
        ([0, 2, 4], (0, 1, 2)),
        ([0.333, 0.667], (333, 667)),
        # 414,159 places would tell them apart; of ten thousand they have 7585.47 and 2414.53
        ([3.14159, 1], (7585, 2415)),
        # far below one place of ten thousand, and still drawn from
        ([1, 1e-9], (9999, 1)),
        ([1, 1, 1e-9, 1e-9], (4999, 4999, 1, 1)),
    ],
)
def test_a_round_has_the_fewest_places_that_tell_the_weights_apart(given, places):
    assert places_per_round(given) == places


@given(st.lists(st.floats(0, 1e300), min_size=1, max_size=64).filter(any))
def test_a_round_of_any_weights_is_bounded_and_leaves_nobody_out(given):
    places = places_per_round(given)
    assert sum(places) <= LONGEST_ROUND
    assert [count > 0 for count in places] == [weight > 0 for weight in given]


def test_many_small_sources_are_spread_over_the_round():
    mixture = Mixture([63, *[1] * 63], [1000] * 64, seed=None)
    sources = sources_of(mixture, [1000] * 64, np.arange(126))
    # half of the places are the first source's: one in two, and not all of them before the others
    assert all(2 <= count <= 8 for count in (sources.reshape(-1, 9) == 0).sum(axis=1))
