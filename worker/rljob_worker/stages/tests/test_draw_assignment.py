"""What each rank draws of a round, and how all learn what became of it."""

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.tests.builders import make_plan
from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.databuffer.leases.ledger import Ledger, merge_outcomes
from rljob_worker.stages.draws.draw_assignment import ByRank, Leased, draw_assignment_of, num_leases_of
from rljob_worker.stages.stage import Alone, StageContext

SPEC = make_plan("algorithm={name: DAPO, groupSize: 4}").spec


class Owner:
    """All leases of some ranks in one place, as the data buffers have them together."""

    def __init__(self, num_ranks: int = 1) -> None:
        self._ledger, self._lock = Ledger(0, 1, 0), threading.Lock()
        self._barrier = threading.Barrier(num_ranks, timeout=TEST_TIMEOUT_SECONDS)
        self._announced: dict[tuple[int, int], list[bytes]] = {}

    def take(self, step: int, number: int, num_leases: int) -> int | None:
        with self._lock:
            return self._ledger.grant(step, number, num_leases)

    def tell(self, step: int, number: int, outcomes: bytes) -> None:
        with self._lock:
            self._announced.setdefault((step, number), []).append(outcomes)

    def hear(self, step: int, number: int) -> bytes:
        self._barrier.wait()
        return merge_outcomes(self._announced[step, number])


def context(rank=0, size=1, leases=None, copy=None, reduce=None, lease_rows=None):
    rollout = SPEC.rollout.model_copy(update={"lease_rows": lease_rows})
    job = SPEC.model_copy(update={"rollout": rollout})
    return StageContext(1, 3, job, str, reduce=reduce, dp_rank=rank, dp_size=size, copy=copy or Alone(), leases=leases)


def test_a_stage_without_leases_is_dealt_by_rank_and_sums_outcomes():
    deal = draw_assignment_of(context(1, 2, reduce=lambda known: known + 3))
    assert isinstance(deal, ByRank)
    assert [share.tolist() for share in deal.shares(np.arange(10, 15), 0)] == [[13, 14]]
    assert deal.likely(np.arange(4)).tolist() == [2, 3]
    assert deal.outcomes(np.array([0, 1]), 0).tolist() == [3, 4]


def test_leases_of_few_rows_are_the_parts_of_ranks():
    """So that what is generated together is what would be by rank."""
    deal = draw_assignment_of(context(0, 3, Owner()))
    # 7 groups over 3 ranks: 3 2 2; no rank has more than twice a rank's part
    assert isinstance(deal, Leased)
    assert [share.tolist() for share in deal.shares(np.arange(7), 0)] == [[0, 1, 2], [3, 4]]
    assert deal.likely(np.arange(7)).tolist() == [0, 1, 2]


def test_many_rows_are_more_leases_than_ranks():
    # 160 groups of 4 rows, at most 256 rows a lease: 3 leases for 2 ranks, of which one may take two
    deal = draw_assignment_of(context(0, 2, Owner()))
    assert [len(share) for share in deal.shares(np.arange(160), 0)] == [54, 53]
    assert num_leases_of(640, 2, None) == 3 and num_leases_of(512, 3, None) == 3


def test_the_job_says_how_many_rows_a_lease_has():
    # 8 groups of 4 rows, 8 rows a lease: 4 leases for one rank
    deal = draw_assignment_of(context(0, 1, Owner(), lease_rows=8))
    assert [share.tolist() for share in deal.shares(np.arange(8), 0)] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    # whole groups: 9 rows a lease are 4 leases of 32 rows, and 3 rows a lease are one of each group
    deal = draw_assignment_of(context(0, 1, Owner(), lease_rows=9))
    assert [len(share) for share in deal.shares(np.arange(8), 0)] == [2, 2, 2, 2]
    deal = draw_assignment_of(context(0, 1, Owner(), lease_rows=3))
    assert [len(share) for share in deal.shares(np.arange(8), 0)] == [1] * 8


@given(st.integers(1, 40), st.integers(1, 200))
def test_leases_of_the_job_are_the_same_for_any_number_of_ranks(num_groups, lease_rows):
    leases = set()
    for size in (1, 2, 5):
        owner, numbers = Owner(), np.arange(num_groups)
        deals = [draw_assignment_of(context(rank, size, owner, lease_rows=lease_rows)) for rank in range(size)]
        shares = [tuple(share.tolist()) for deal in deals for share in deal.shares(numbers, 0)]
        leases.add(tuple(sorted(shares)))
        # at most as many rows as the job says, in whole groups of 4
        assert max(map(len, shares)) <= -(-lease_rows // 4)
    assert len(leases) == 1


def test_a_rank_may_have_nothing_to_do():
    # one lease of all 4 groups, twice what a rank has of them; the second rank finds none, and reads nothing ahead
    owner, numbers = Owner(), np.arange(4)
    first, second = (draw_assignment_of(context(rank, 4, owner, lease_rows=100)) for rank in (0, 1))
    assert [share.tolist() for share in first.shares(numbers, 0)] == [[0, 1, 2, 3]]
    assert list(second.shares(numbers, 0)) == [] and second.likely(numbers).tolist() == []


@given(st.integers(1, 40), st.integers(1, 6), st.none() | st.integers(1, 200), st.randoms(use_true_random=False))
def test_every_number_is_drawn_once_and_nobody_draws_more_than_there_is_room_for(num_groups, size, rows, rng):
    owner, numbers = Owner(), np.arange(100, 100 + num_groups)
    contexts = [context(rank, size, owner, lease_rows=rows) for rank in range(size)]
    deals = {rank: draw_assignment_of(contexts[rank]).shares(numbers, 0) for rank in range(size)}
    drawn = {rank: [] for rank in range(size)}
    while deals:
        rank = rng.choice(sorted(deals))
        share = next(deals[rank], None)
        if share is None:
            del deals[rank]
        else:
            assert len(share)
            drawn[rank] += share.tolist()
    assert sorted(sum(drawn.values(), [])) == numbers.tolist()
    assert max(map(len, drawn.values())) <= max(2 * -(-num_groups // size), -(-(rows or 0) // 4))


class Copy:
    """Both ranks of a copy in turn: a peer gets what its leader said before."""

    def __init__(self) -> None:
        self.is_leader, self.said = True, []

    def from_leader(self, shape, work):
        if not self.is_leader:
            return self.said.pop(0), None
        values, rest = work()
        assert values.shape == shape
        self.said.append(values)
        return values, rest


def test_ranks_of_a_copy_draw_what_their_leader_took():
    copy = Copy()
    for is_leader in (True, False):
        copy.is_leader = is_leader
        deal = draw_assignment_of(context(0, 2, Owner() if is_leader else object(), copy))
        assert [share.tolist() for share in deal.shares(np.arange(3), 0)] == [[0, 1], [2]]
        assert deal.outcomes(np.array([1, 2, 1]), 0).tolist() == [1, 2, 1]
    assert not copy.said


def test_a_number_that_nobody_drew_is_an_error():
    with pytest.raises(AssertionError, match=r"nobody drew \[1\] of round 0"):
        draw_assignment_of(context(0, 1, Owner())).outcomes(np.array([1, 0]), 0)
