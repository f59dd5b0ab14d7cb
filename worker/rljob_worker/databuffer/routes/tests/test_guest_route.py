"""Leases of an elastic group as arithmetic: they cut every batch alike on every host, and leave nothing out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_worker.databuffer.routes.guest_route import VALIDATION_PIECES, GuestRoute, LeaseId
from rljob_worker.databuffer.routes.hosts import Host, WorkerId


def route(owners=2, ranks=1, batch=8, lease_groups=2, **fields) -> GuestRoute:
    values = {
        "group": "rollout", "num_guests": 4, "generators_per_guest": 1, "stages": ("rollout",), **fields,
    }  # fmt: skip
    hosts = tuple(Host("train", index) for index in range(owners))
    return GuestRoute(owners=hosts, ranks_per_owner=ranks, batch_size=batch, lease_groups=lease_groups, **values)


def test_the_leases_of_a_step_are_those_of_its_ranks() -> None:
    # 8 groups, 2 ranks with 4 each, leases of at most 3 groups: 2 leases of 2 each
    small = route(lease_groups=3)
    leases = small.leases_of(Host("train", 1), 2)
    assert leases == [LeaseId(2, 0, 1, "rollout"), LeaseId(2, 1, 1, "rollout")]
    assert [list(small.numbers(lease)) for lease in leases] == [[12, 13], [14, 15]]
    assert [str(small.owner_of(lease)) for lease in leases] == ["train-1", "train-1"]
    assert str(leases[1]) == "lease 1 of rank 1, rollout, step 2"


@given(st.integers(1, 5), st.integers(1, 3), st.integers(1, 40), st.integers(1, 9), st.integers(1, 4))
def test_every_draw_number_of_a_step_is_in_one_lease(owners, ranks, batch, lease_groups, step) -> None:
    one = route(owners, ranks, batch, lease_groups)
    leases = [lease for owner in one.owners for lease in one.leases_of(owner, step)]
    numbers = [number for lease in leases for number in one.numbers(lease)]
    assert sorted(numbers) == list(range((step - 1) * batch, step * batch))
    assert all(1 <= len(one.numbers(lease)) <= lease_groups and one.is_lease(lease) for lease in leases)
    assert all(one.num_owned("rollout", owner) == len(one.leases_in("rollout", owner, step)) for owner in one.owners)
    assert [one.owner_of(lease) for lease in leases] == [o for o in one.owners for _ in one.leases_of(o, step)]


def test_pieces_of_a_validation_are_leases_of_their_own_also_before_the_first_step() -> None:
    # 2 ranks with 3 pieces each
    one = route(pieces_per_rank=3)
    leases = [lease for owner in one.owners for lease in one.leases_in(VALIDATION_PIECES, owner, 0)]
    assert [list(one.numbers(lease)) for lease in leases] == [[0], [1], [2], [3], [4], [5]]
    assert all(one.is_lease(lease) for lease in leases) and one.num_pieces == 6
    assert [str(one.owner_of(leases[at])) for at in (2, 3)] == ["train-0", "train-1"]
    assert leases[0] < LeaseId(1, 0, 0, "rollout"), "what is given again first"
    assert one.leases_of(Host("train", 0), 1) == route().leases_of(Host("train", 0), 1)
    assert not one.is_lease(LeaseId(0, 3, 0, VALIDATION_PIECES)) and not route().is_lease(leases[0])


@pytest.mark.parametrize(
    "fields", [{"step": 0}, {"rank": 2}, {"rank": -1}, {"index": 2}, {"index": -1}, {"stage": "sample"}]
)
def test_what_is_no_lease_of_the_job_is_known(fields) -> None:
    lease = {"step": 1, "index": 1, "rank": 1, "stage": "rollout"}
    assert route().is_lease(LeaseId(**lease))
    assert not route().is_lease(LeaseId(**lease | fields))


def test_guests_are_spread_over_owners_which_pass_on_in_a_ring() -> None:
    one = route(owners=3)
    assert [one.home(Host("rollout", index)).index for index in range(4)] == [0, 1, 2, 0]
    assert [one.owner_after(owner).index for owner in one.owners] == [1, 2, 0]
    assert one.is_guest(Host("rollout", 3)) and not one.is_guest(Host("train", 0))


def test_copies_of_a_guest_ask_through_their_leaders() -> None:
    # 4 workers a guest, 2 copies: guest 1 has ranks 4 to 7, which 4 and 6 lead
    one = route(generators_per_guest=2)
    assert [one.generator_of(WorkerId("rollout", rank), 4) for rank in range(4, 8)] == [0, None, 1, None]


def test_many_guests_are_pinged_more_seldom() -> None:
    assert [route(num_guests=guests).ping_seconds for guests in (1, 128, 1024)] == [2.0, 2.0, 16.0]
