"""Who gives a version to which guest."""

from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.databuffer.weights.guest_parents import KEPT_VERSIONS, GuestParents

EDGE = "weights/actor"


def guest(number):
    return Host("rollout", number)


def test_guests_pass_a_version_on_two_by_two():
    parents = GuestParents()
    # the sources give it to two, each of these to two, and so on
    asked = [parents.parent(EDGE, 1, guest(number)) for number in range(8)]
    assert asked == [None, None, *[guest(number) for number in (0, 0, 1, 1, 2, 2)]]
    assert parents.parent(EDGE, 2, guest(7)) is None, "every version has a tree of its own"


def test_who_asks_again_or_has_lost_its_parent_goes_to_the_sources():
    parents = GuestParents()
    for number in range(4):
        parents.parent(EDGE, 1, guest(number))
    assert parents.parent(EDGE, 1, guest(3)) is None
    parents.lose(guest(0))
    # 1 2 3 are left: the next is the fourth, the second child of the first
    assert parents.parent(EDGE, 1, guest(5)) == guest(1)


def test_old_versions_are_forgotten():
    parents = GuestParents()
    for version in range(KEPT_VERSIONS + 1):
        for number in range(3):
            parents.parent(EDGE, version, guest(number))
    assert parents.parent(EDGE, 1, guest(9)) == guest(0)
    assert parents.parent(EDGE, 0, guest(9)) is None
