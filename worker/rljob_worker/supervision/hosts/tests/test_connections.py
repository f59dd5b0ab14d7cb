"""Host 0's connections on real sockets: hosts, and those who are none."""

import contextlib
import os
import socket
import threading

import pytest

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.errors import DeadlineExceeded, InvalidJob
from rljob_worker.process import frames
from rljob_worker.supervision.hosts.client import Interrupted, call
from rljob_worker.supervision.hosts.connections import GREETING, OTHER_TOKEN, HostConnections, HostLost, HostRefused
from rljob_worker.supervision.hosts.membership import Membership
from rljob_worker.supervision.hosts.messages import Asked, Clear, Finish, Hello
from rljob_worker.tests.waiting import wait_for

TOKEN = "0123456789abcdef"


def hello(host, num_hosts=3):
    return Hello(host, num_hosts, f"gpu{host}", "0.1.0", "tiny", {}, "hash")


class Place:
    """Connections with what they have sent and received."""

    def __init__(self, num_hosts=3):
        self.announced = []
        self.events = []
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        self.connections = HostConnections(listener, TOKEN, num_hosts, self.announced.append)

    def pump(self):
        self.events += self.connections.pump(0.01)
        return self.events

    def until(self, condition):
        return wait_for(lambda: self.pump() is not None and condition())

    @contextlib.contextmanager
    def host(self, number, token=TOKEN):
        """A host that has said hello; its call is answered by the kernel, and by `HostConnections` once it pumps."""
        read_end, write_end = os.pipe()
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, read_end)
            stack.callback(os.close, write_end)
            result = []
            membership = Membership(number, 3, "127.0.0.1", self.port)
            caller = threading.Thread(
                target=lambda: result.append(call(membership, hello(number), token, 30, read_end))
            )
            caller.start()
            self.until(lambda: result)
            caller.join()
            stack.enter_context(contextlib.closing(result[0]))
            yield result[0]

    @contextlib.contextmanager
    def stranger(self):
        with socket.create_connection(("127.0.0.1", self.port)) as channel:
            channel.settimeout(TEST_TIMEOUT_SECONDS)
            yield channel


@pytest.fixture
def place():
    result = Place()
    yield result
    result.connections.close()


def words_of(place, connection):
    heard = []
    place.until(lambda: heard.extend(connection.messages()) or heard)
    return heard


def test_hosts_say_who_they_are_and_hear_what_is_for_them(place):
    with place.host(1) as one, place.host(2) as two:
        place.until(lambda: len(place.events) == 2)
        assert [host for host, _ in place.events] == [1, 2] and place.connections.is_here(2)
        place.connections.send(1, Clear(7))
        place.connections.send_all(Finish(0, "done"))
        assert words_of(place, one) == [Clear(7), Finish(0, "done")]
        assert words_of(place, two) == [Finish(0, "done")]
        two.send(Asked(1))
        place.until(lambda: (2, Asked(1)) in place.events)
        assert place.connections.address_of(1) == "127.0.0.1"
    assert place.announced == []


def test_a_word_of_a_megabyte_comes_whole(place):
    with place.host(1) as one:
        place.until(lambda: place.events)
        place.connections.send(1, Finish(70, "x" * (4 << 20)))
        (word,) = words_of(place, one)
        assert len(word.words) == 4 << 20


def test_a_host_that_hangs_up_is_lost(place):
    with place.host(1):
        place.until(lambda: place.events)
    place.until(lambda: len(place.events) == 2)
    assert place.events[1] == (1, HostLost("it hung up")) and not place.connections.is_here(1)
    place.connections.send(1, Clear(1))  # goes nowhere


@pytest.mark.parametrize("number", [1, 3])
def test_a_second_host_of_a_number_and_one_beyond_are_refused_in_words(place, number):
    with place.host(1), place.host(number) as other:
        (word,) = words_of(place, other)
        assert word.code == 64 and f"host {number}" in word.words
        assert (number, HostRefused(word.words)) in place.events and place.connections.is_here(1)


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n\r\n", b"", b"x" * 16], ids=["browser", "nothing", "a number"])
def test_a_stranger_is_turned_away_and_told_of_once(place, said):
    with place.stranger() as channel:
        place.until(lambda: True)
        assert frames.receive_frame(channel, 100).startswith(GREETING)
        frames.send_frame(channel, said)
        if said == b"x" * 16:
            frames.send_frame(channel, b"no seal")
        place.until(lambda: place.announced)
        assert frames.receive_frame(channel, 100) == OTHER_TOKEN
        assert channel.recv(1) == b""
    assert place.announced[0].startswith("a caller from 127.0.0.1 was turned away: it ") and place.events == []


def test_a_stranger_that_sends_gigabytes_is_turned_away_unread(place):
    with place.stranger() as channel:
        channel.sendall((1 << 31).to_bytes(4, "big"))
        place.until(lambda: not is_open(channel))
    assert place.events == []


def is_open(channel):
    """Read on; False at its end."""
    channel.settimeout(0.01)
    with contextlib.suppress(TimeoutError):
        return channel.recv(1000) != b""
    return True


def test_the_console_hears_of_a_few_strangers_of_many(place):
    for _ in range(8):
        with place.stranger() as channel:
            frames.send_frame(channel, b"nobody")
            place.until(lambda channel=channel: not is_open(channel))
    assert len(place.announced) == 5


def test_a_host_of_another_job_learns_that_the_token_is_not_its_own(place):
    with place.host(1, token="another-0123456789") as other, pytest.raises(InvalidJob, match="has another token"):
        words_of(place, other)
    assert place.events == []


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def test_host_0_that_does_not_answer_is_waited_for_and_named():
    read_end, write_end = os.pipe()
    membership = Membership(1, 3, "127.0.0.1", free_port())
    with pytest.raises(DeadlineExceeded, match=r"host 0 at 127.0.0.1:\d+ does not answer within 0 s \(.*refused\)"):
        call(membership, hello(1), TOKEN, 0.0, read_end)
    os.write(write_end, b"!")
    with pytest.raises(Interrupted):
        call(membership, hello(1), TOKEN, 60.0, read_end)
    for end in (read_end, write_end):
        os.close(end)


def test_another_service_at_the_address_is_told_apart():
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            channel, _ = listener.accept()
            channel.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            channel.close()

        server = threading.Thread(target=serve)
        server.start()
        read_end, write_end = os.pipe()
        membership = Membership(1, 3, "127.0.0.1", listener.getsockname()[1])
        with pytest.raises(InvalidJob, match="is not an `rljob launch` of this version"):
            call(membership, hello(1), TOKEN, 5.0, read_end)
        server.join()
    for end in (read_end, write_end):
        os.close(end)
