"""What ranks have had of which version, and how long that is remembered."""

import pytest

from rljob_worker.databuffer.protocol.errors import OutOfOrder
from rljob_worker.databuffer.weights.readers import Readers


def test_versions_begin_at_0():
    readers = Readers("weights/actor", [3, 4], 1)
    assert readers.wanting(0) == {3, 4} and not readers.is_new_to(3, 0) and readers.is_new_to(3, 1)


def test_what_was_closed_is_remembered_for_the_slowest_rank_and_no_longer():
    readers = Readers("weights/actor", [0, 1], 2)
    for version in (1, 2):
        for source in (0, 1):
            readers.closed(version, source, 1)
    readers.leave_behind(0, 3)
    assert readers.late(1) == [] and readers.wanting(2) == {1}
    readers.leave_behind(1, 2)
    assert readers.late(1) == [0, 1] and readers.late(2) == []
    readers.closed(1, 0, 1)  # nobody wants it any more
    assert readers.late(1) == [0, 1]


def test_a_rank_has_had_all_when_every_source_has_closed_and_the_numbers_agree():
    readers = Readers("weights/actor", [0], 2)
    readers.closed(1, 0, 2)
    readers.gave(0)
    readers.gave(0)
    assert readers.total_had(0, 1) is None
    readers.closed(1, 1, 1)
    assert readers.total_had(0, 1) is None
    readers.gave(0)
    assert readers.total_had(0, 1) == 3
    readers.leave_behind(0, 1)
    assert readers.total_had(0, 1) is None  # counted anew
    with pytest.raises(OutOfOrder, match="version 0 of weights/actor is over: rank 0 can have version 1 next"):
        readers.is_new_to(0, 0)
