"""Which versions a source keeps in the store of its host, and for whom."""

from contextlib import contextmanager

import numpy as np
import torch

from rljob_worker.weights.buffers import BufferSource

EDGE = "weights/actor"


class Slots:
    """Memory for one chunk of each version."""

    slot_bytes = 64

    def reserve(self, num_bytes):
        return np.zeros(num_bytes, np.uint8)

    def seal(self, table, num_bytes=None):
        """Nobody fetches it."""


class Store:
    def __init__(self):
        self.held = set()

    @contextmanager
    def sending(self, version, edge):
        assert edge == EDGE
        self.held.add(version)
        yield Slots()

    def release_version(self, version, edge):
        self.held.remove(version)


def send(source, version, keep=()):
    with source.sending(version, keep) as out:
        assert out.send([("layer.weight", torch.full((2,), float(version)))]) == 8


def test_a_version_stays_while_receivers_may_ask_for_it_or_a_checkpoint_is_written_of_it():
    store = Store()
    source = BufferSource(store, EDGE)
    send(source, 1)
    send(source, 2, keep=[1])
    (chunk,) = source.pin(1)
    assert chunk.data.view(torch.float32).tolist() == [1.0, 1.0]
    send(source, 3, keep=[2])
    assert store.held == {1, 2, 3}, "1 is still being written"
    source.unpin()
    assert store.held == {2, 3}
    source.pin(3)
    source.unpin()
    assert store.held == {2, 3}, "receivers may still ask for it"
    send(source, 4)
    assert store.held == {4}
