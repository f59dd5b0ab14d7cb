"""Which share a row goes to: by number or balanced, with any number of rows to a group."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_worker.batch.minibatches import mini_batch_of
from rljob_worker.batch.row_index import RowIndex
from rljob_worker.databuffer.routes import repartition
from rljob_worker.databuffer.routes.assignment import ProducerLayout
from rljob_worker.databuffer.routes.stage_route import StageRoute
from rljob_worker.databuffer.tests.gang import two_stages

sizes = st.tuples(st.integers(1, 4), st.integers(1, 4))
"""Hosts, workers per host."""


@st.composite
def steps(draw):
    """Rows of step 3 of a job with 12 prompts a step: any number of rows to a group, also none, numbered with gaps."""
    counts = draw(st.lists(st.integers(0, 6), min_size=12, max_size=12))
    rows_per_group = 6  # 2 trajectories of up to 3 rows
    rows = [
        (24 + number) * rows_per_group + index
        for number, count in enumerate(counts)
        for index in sorted(draw(st.sets(st.integers(0, rows_per_group - 1), min_size=count, max_size=count)))
    ]
    ids = np.array(rows, np.int64)
    tokens = np.array([draw(st.integers(1, 500)) for _ in rows], np.int64)
    return RowIndex(ids, ids // rows_per_group, tokens)


def layout_of(index):
    return ProducerLayout(np.zeros(len(index), np.int64), index)


@settings(max_examples=60)
@given(steps(), sizes, sizes)
def test_groups_with_any_number_of_rows_go_where_their_prompts_go(index, made, used):
    route = StageRoute.of(two_stages(made, used, batch_size=12), "a->b")
    shares = route.assign(3, layout_of(index))
    prompts = index.group_ids - 24
    assert shares.tolist() == (prompts * route.num_shares // 12).tolist()
    parts = prompts * route.num_parts // 12
    for share, part in zip(shares, parts, strict=True):
        assert part in route.parts_of(int(share), None) and share in route.shares_fed_by(int(part), None)


@settings(max_examples=60)
@given(steps(), st.sampled_from([1, 2, 3]), st.booleans(), st.randoms(use_true_random=False))
def test_groups_with_any_number_of_rows_are_balanced_within_their_mini_batches(index, mini_batches, whole, random):
    plan = two_stages(
        (1, 2), (1, 4), batch_size=12, balance="Tokens", mini_batch_rows=24 // mini_batches, needs_groups=whole
    )
    route = StageRoute.of(plan, "a->b")
    shares = route.assign(3, layout_of(index))
    order = np.array(random.sample(range(len(index)), len(index)), np.int64)
    assert route.assign(3, layout_of(index.take(order))).tolist() == shares[order].tolist()
    update = mini_batch_of(index.group_ids, step=3, batch_size=12, num_mini_batches=mini_batches, seed=plan.spec.seed)
    assert len(shares) == len(index) and set(shares.tolist()) <= {0, 1, 2, 3}
    for number in range(mini_batches):
        inside = update == number
        loads = np.bincount(shares[inside], index.num_tokens[inside], minlength=4)
        of_group = np.bincount(index.group_ids[inside], index.num_tokens[inside], minlength=1)
        largest = max(of_group if whole else index.num_tokens[inside], default=0)
        assert loads.max() <= loads.mean() + 0.75 * largest + 1e-6
    if whole:
        assert all(len(set(shares[index.group_ids == group])) == 1 for group in np.unique(index.group_ids))


@pytest.mark.parametrize("balance", ["Tokens", "Attention"])
@pytest.mark.parametrize("whole", [False, True])
def test_a_route_balances_with_the_numbers_of_its_plan(balance, whole):
    plan = two_stages((1, 1), (1, 4), batch_size=12, balance=balance, needs_groups=whole, mini_batch_rows=8)
    rng = np.random.default_rng(1)
    ids = np.arange(48, 72)  # step 3, two rows to a group
    index = RowIndex(ids, ids // 2, rng.integers(1, 9000, 24))
    update = mini_batch_of(index.group_ids, step=3, batch_size=12, num_mini_batches=3, seed=plan.spec.seed)
    expected = repartition.balanced(
        ids, index.group_ids, repartition.row_costs(index.num_tokens, balance), update, parts=4, whole_groups=whole
    )
    assert StageRoute.of(plan, "a->b").assign(3, layout_of(index)).tolist() == expected.tolist()


def test_a_route_keeps_the_rows_of_a_trajectory_together():
    plan = two_stages((1, 1), (1, 4), batch_size=4, balance="Tokens").model_copy(update={"rows_per_trajectory": 3})
    # step 1: 4 groups of 2 trajectories with 3 rows each, the first row far longer than the others
    ids = np.arange(24)
    index = RowIndex(ids, ids // 6, np.where(ids % 3 == 0, 900, 10))
    shares = StageRoute.of(plan, "a->b").assign(1, layout_of(index)).reshape(8, 3)
    assert (shares == shares[:, :1]).all()
    assert np.bincount(shares[:, 0]).tolist() == [2, 2, 2, 2]
