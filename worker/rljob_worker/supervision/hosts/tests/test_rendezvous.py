"""Host 0 with hosts that call it for real, and a clock that stands still until they are there."""

import contextlib
import os
import select
from concurrent.futures import ThreadPoolExecutor

import pytest

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_worker.errors import DeadlineExceeded
from rljob_worker.process.signal_pipe import SignalPipe
from rljob_worker.supervision.hosts.client import call
from rljob_worker.supervision.hosts.compatibility import Expected
from rljob_worker.supervision.hosts.membership import Membership
from rljob_worker.supervision.hosts.messages import Finish, Hello
from rljob_worker.supervision.hosts.rendezvous import rendezvous
from rljob_worker.supervision.tests.launched import TOKEN, free_port

WAIT_SECONDS = 600.0


def be_host(host, port):
    """Until it is told to leave; the code and the words that it is told."""
    hello = Hello(host, 3, f"node{host}", "0", "tiny", {}, "hash")
    membership = Membership(host, 3, "127.0.0.1", port)
    with contextlib.closing(call(membership, hello, TOKEN, WAIT_SECONDS, os.pipe()[0])) as connection:
        while True:
            select.select([connection], [], [])
            for message in connection.messages():
                if isinstance(message, Finish):
                    return message.code, message.words


def test_a_host_that_does_not_come_is_named_to_all_who_did():
    port = free_port()

    def clock():
        return WAIT_SECONDS + 1 if len(met.names) == 2 else 0.0

    with ThreadPoolExecutor(2) as others:
        hosts = [others.submit(be_host, host, port) for host in (0, 1)]
        with (
            rendezvous(Membership(0, 3, "127.0.0.1", port), TOKEN, WAIT_SECONDS, print, clock) as met,
            SignalPipe(()) as signals,
        ):
            with pytest.raises(
                DeadlineExceeded, match=f"1 of 3 hosts: host 2 did not come to 127.0.0.1:{port} within 600 s"
            ):
                met.gather(Expected(3, "0", "tiny", {}, "hash"), signals)
            met.dismiss(int(ExitCode.RETRY), "host 2 did not come")
        reported = [host.result(TEST_TIMEOUT_SECONDS) for host in hosts]
    assert reported == [(int(ExitCode.RETRY), "host 2 did not come")] * 2
