"""Framing of fork server messages and their descriptors."""

import os
import socket
import threading

from rljob_worker.forkserver import wire


def test_a_message_larger_than_any_buffer_arrives_whole_with_its_descriptors() -> None:
    ours, theirs = socket.socketpair()
    read_end, write_end = os.pipe()
    message = {"environment": {"LARGE": "é" * 1_000_000}}
    with ours, theirs:
        sender = threading.Thread(target=wire.send_with_descriptors, args=(ours, message, [write_end]))
        sender.start()
        received = wire.receive_with_descriptors(theirs)
        sender.join()
    assert received is not None
    assert received[0] == message
    (descriptor,) = received[1]
    os.write(descriptor, b"through the copy")
    assert os.read(read_end, 100) == b"through the copy"
    for item in (read_end, write_end, descriptor):
        os.close(item)


def test_messages_keep_their_borders() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for number in range(3):
            wire.send_with_descriptors(ours, {"number": number})
        assert [wire.receive_with_descriptors(theirs) for _ in range(3)] == [
            ({"number": number}, []) for number in range(3)
        ]


def test_a_channel_that_ends_is_no_message() -> None:
    for sent in (b"", b"\0\0", b"\0\0\0\x08{"):
        ours, theirs = socket.socketpair()
        with theirs:
            with ours:
                ours.sendall(sent)
            assert wire.receive_with_descriptors(theirs) is None
