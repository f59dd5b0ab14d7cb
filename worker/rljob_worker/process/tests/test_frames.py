"""Frames over a socket: whole, bounded, and ended by name."""

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from rljob_worker.process import frames


@pytest.mark.parametrize("num_bytes", [0, 1, 255, 256, 3 << 20])
def test_a_frame_arrives_as_it_was_sent(num_bytes: int):
    body = bytes(range(256)) * (num_bytes // 256) + bytes(num_bytes % 256)
    ours, theirs = socket.socketpair()
    with ours, theirs, ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: [frames.send_frame(ours, item) for item in (body, b"next")])
        assert frames.receive_frame(theirs, num_bytes) == body
        assert frames.receive_frame(theirs, 4) == b"next"


def test_a_frame_that_is_too_long_is_not_read():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(frames.length_of(bytes(4097)))
        with pytest.raises(frames.TooLong, match="4,097 bytes, at most 4,096 are read"):
            frames.receive_frame(theirs, 4096)


@pytest.mark.parametrize("sent", [b"", b"\x00\x00", b"\x00\x00\x00\x05four"])
def test_the_end_of_a_channel_is_no_frame(sent: bytes):
    ours, theirs = socket.socketpair()
    with theirs:
        with ours:
            ours.sendall(sent)
        with pytest.raises(EOFError):
            frames.receive_frame(theirs, 100)
