"""Ports of Ray: which, where they are looked for, and what is said of one that is taken."""

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_worker.errors import PeerLost
from rljob_worker.services.ray_ports import OWNERS, RayPorts, choose_ports, free_ports, is_free, span_of


def test_every_process_has_ports_of_its_own():
    arguments = RayPorts(20000, num_workers=10).arguments
    first_worker, last_worker = arguments.pop("min_worker_port"), arguments.pop("max_worker_port")
    assert arguments.keys() == OWNERS.keys()
    assert sorted(arguments.values()) == list(range(20000, 20007))
    assert (first_worker, last_worker) == (20007, 20016)


@given(st.integers(1, 20), st.sets(st.integers(100, 160)), st.integers(0, 3))
def test_ports_are_free_and_within_their_span(num_workers, taken, seed):
    draws = iter(range(100 + seed, 1000))
    count = len(OWNERS) + num_workers
    result = choose_ports(num_workers, (100, 400), lambda port: port not in taken, lambda low, high: next(draws))
    mine = set(range(result.first, result.first + count))
    assert result.num_workers == num_workers and not mine & taken and mine <= set(range(100, 401))


def test_there_may_be_none():
    asked = []
    with pytest.raises(PeerLost, match="Ray needs 17 free ports in a row, and none were found from 100 to 400"):
        choose_ports(10, (100, 400), lambda port: False, lambda low, high: asked.append((low, high)) or low)
    assert set(asked) == {(100, 384)}  # 17 from there on end at 400


def test_ports_lie_below_those_that_the_system_gives_to_others():
    assert span_of("32768\t60999\n", 263) == (10000, 32767)
    # where it gives nearly all of them, there is nothing below
    assert span_of("1024\t65535\n", 263) == (10000, 65535)
    assert span_of(None, 263) == (10000, 65535)


def test_a_port_is_free_when_nobody_listens_there():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert not is_free(port)
    ports = free_ports(num_copies=2)
    assert ports.num_workers == 258 and ports.taken(is_free) == []
