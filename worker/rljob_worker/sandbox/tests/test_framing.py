"""Messages in pieces of any size, and how often their bytes are copied."""

import json
import os
import threading
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_worker.sandbox.guardian.framing import Lines, Outbox, receive_message, until_death


class Pipe:
    """Takes `room` bytes at a time and remembers whose bytes it was given."""

    def __init__(self, room):
        self.room, self.data, self.owners = room, b"", []

    def write(self, view):
        self.data += view[: self.room]
        self.owners.append(view.obj)
        return min(len(view), self.room)


def frame(message):
    body = json.dumps(message).encode()
    return len(body).to_bytes(8, "big") + body


messages = st.lists(st.dictionaries(st.text(max_size=3), st.text(max_size=300), max_size=3), max_size=4)


@given(messages, st.integers(1, 50))
def test_frames_leave_in_order_whatever_the_pipe_takes(sent, room):
    outbox, pipe = Outbox(), Pipe(room)
    for message in sent:
        outbox.add(message)
    assert bool(outbox) == bool(sent)
    outbox.write(pipe.write)
    assert pipe.data == b"".join(map(frame, sent)) and not outbox


def test_what_is_left_of_a_message_is_not_copied():
    outbox, pipe = Outbox(), Pipe(200)
    outbox.add({"row": "x" * 20_000})
    outbox.write(pipe.write)
    # the length's eight bytes, and one object for the 20,011 of the body however many pieces it takes
    assert len(pipe.owners) == 1 + 101
    assert len({id(owner) for owner in pipe.owners}) == 2


def test_a_short_message_leaves_in_one_piece_that_wakes_its_reader_once():
    outbox, pipe = Outbox(), Pipe(100)
    outbox.add({"row": 1})
    outbox.write(pipe.write)
    assert len(pipe.owners) == 1 and pipe.data == frame({"row": 1})


def test_a_full_pipe_is_gone_on_with():
    outbox, pipe, room = Outbox(), Pipe(7), [7, 7, 7]

    def write(view):
        if not room:
            raise BlockingIOError
        room.pop()
        return pipe.write(view)

    outbox.add({"row": 1})
    outbox.add({"row": 2})
    with pytest.raises(BlockingIOError):
        outbox.write(write)
    assert outbox
    outbox.write(pipe.write)
    assert pipe.data == frame({"row": 1}) + frame({"row": 2}) and not outbox


def test_what_is_cleared_never_leaves():
    outbox, pipe = Outbox(), Pipe(100)
    outbox.add({"row": 1})
    outbox.clear()
    outbox.write(pipe.write)
    assert not outbox and not pipe.data


def test_numbers_of_numpy_are_numbers():
    outbox, pipe = Outbox(), Pipe(1000)
    outbox.add({"row_id": np.int64(3), "score": np.float32(0.5), "cut": np.bool_(True)})
    outbox.write(pipe.write)
    assert pipe.data == frame({"row_id": 3, "score": 0.5, "cut": True})


@given(st.lists(st.binary(max_size=20).map(lambda line: line.replace(b"\n", b" "))), st.binary(max_size=3), st.data())
def test_lines_are_the_same_whatever_pieces_they_come_in(lines, rest, data):
    rest = rest.replace(b"\n", b" ")
    whole = b"".join(line + b"\n" for line in lines) + rest
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)))))
    pieces = [whole[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    reader = Lines()
    assert [line for piece in pieces for line in reader.take(piece)] == lines
    assert reader.take(b"\n") == [rest]


def test_what_has_come_of_a_line_is_not_copied_with_every_piece():
    reader, piece = Lines(), b"x" * 65536
    tracemalloc.start()
    for _ in range(32):
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        assert reader.take(bytes(piece)) == []
        assert tracemalloc.get_traced_memory()[1] - before < 2 * len(piece)
    tracemalloc.stop()
    assert reader.take(b"y\n") == [piece * 32 + b"y"]


@pytest.mark.parametrize(
    ("lines", "messages"),
    [
        ([], []),
        ([b"", b'{"row": 1}', b'{"row": 2}'], [{"row": 1}, {"row": 2}]),
        ([b'{"row": 1}', b'{"ro', b'{"died": 3}', b"", b'{"died": null}'], [{"row": 1}, {"died": 3}]),
        ([b'{"ro', b'{"died": null}'], [{"died": None}]),
    ],
)
def test_a_process_ends_once_and_what_it_was_saying_is_dropped(lines, messages):
    assert until_death(lines) == messages


@pytest.fixture
def pipe():
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_messages_are_received_one_by_one(pipe):
    read, write = pipe
    sent = [{"row": "é"}, {}, {"rows": [[7, {"x": 1.5}]]}]
    os.write(write, b"".join(map(frame, sent)))
    assert [receive_message(read) for _ in sent] == sent


def test_a_large_message_is_read_into_one_place(pipe, monkeypatch):
    read, write = pipe
    data, buffers, readv = frame({"row": "x" * (1 << 20)}), [], os.readv

    def recording(descriptor, views):
        (view,) = views
        buffers.append((view.obj, len(view)))
        return readv(descriptor, views)

    def send():
        left = memoryview(data)
        while left:
            left = left[os.write(write, left) :]

    monkeypatch.setattr(os, "readv", recording)
    sender = threading.Thread(target=send)
    sender.start()
    assert receive_message(read) == {"row": "x" * (1 << 20)}
    sender.join()
    assert len({id(buffer) for buffer, _ in buffers}) == 2
    wanted = [size for _, size in buffers]
    assert wanted[0] == 8 and wanted[1] == len(data) - 8
    assert all(after < before for before, after in zip(wanted[1:], wanted[2:], strict=False)), "only what is left"


@pytest.mark.parametrize("num_bytes", [0, 3, 8, 11])
def test_the_end_of_the_pipe_is_the_end(num_bytes):
    read, write = os.pipe()
    os.write(write, frame({"row": 1})[:num_bytes])
    os.close(write)
    assert receive_message(read) is None
    os.close(read)


def test_bytes_go_behind_a_message_as_they_are(pipe):
    read, write = pipe
    outbox, blobs = Outbox(), [b"\x00\xff\n", b"", b"second"]
    outbox.add({"row": 1}, blobs)
    outbox.add({"row": 2})
    outbox.write(lambda data: os.write(write, data))
    assert receive_message(read) == {"row": 1, "blobs": blobs}
    assert receive_message(read) == {"row": 2}


def test_a_message_whose_bytes_are_cut_off_is_the_end(pipe):
    read, write = pipe
    outbox = Outbox()
    outbox.add({}, [b"cut"])
    frames = []
    outbox.write(lambda data: frames.append(bytes(data)) or len(data))
    os.write(write, b"".join(frames)[:-1])
    os.close(os.dup(write))
    os.close(write)
    assert receive_message(read) is None
    os.dup2(read, write)  # which the fixture closes
