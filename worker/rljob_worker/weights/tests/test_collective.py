"""What is special to broadcasts: who is gone, who is late, whose attempt it is, how much memory it takes."""

import threading
from queue import SimpleQueue

import pytest
import torch
import torch.distributed as dist

from rljob_api.memory.weight_slices import WeightSlices
from rljob_api.planning.weights.flows import WeightFlow
from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.databuffer.tests.gang import group
from rljob_worker.errors import PeerLost
from rljob_worker.tests.forking import forking
from rljob_worker.weights.broadcast_group import SOURCE, BroadcastGroup
from rljob_worker.weights.chunks import unpack_tensors
from rljob_worker.weights.collective import CollectiveReceiver, CollectiveSender
from rljob_worker.weights.slices import sent_parts
from rljob_worker.weights.tests.ways import way

CPU = torch.device("cpu")
HANGS_UP = "(closed|reset) by peer"
"""What gloo says of it; who was waited for until the deadline has timed out."""
SHARED = WeightSlices(tensor=2, heads=2, key_heads=2)
WEIGHTS = {"a": torch.arange(5000.0), "b": torch.ones(3, dtype=torch.bfloat16)}


@pytest.fixture
def store():
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def joined(port, member, size, seconds=TEST_TIMEOUT_SECONDS):
    name = "source train/0 of weights/actor"
    return BroadcastGroup.join(
        f"127.0.0.1:{port}", "weights/actor/0/1", member, size, backend="gloo", seconds=seconds, name=name
    )


def slots():
    return [torch.empty(4096, dtype=torch.uint8) for _ in range(4)]


def receive(port, say):
    """Two versions: says how many numbers it read of each, or what was raised."""
    receiver = CollectiveReceiver(lambda meeting: [joined(port, 1, 2)], slots, CPU)
    receiver.open("")
    try:
        for version in (1, 2):
            say(sum(tensor.numel() for _, tensor in unpack_tensors(receiver.receive(version))))
    except PeerLost as error:
        receiver.close()
        say(str(error))


def receive_in_a_process(port, pipe):
    receive(port, pipe.send)


class Alone:
    """A broadcast group without receivers."""

    def broadcast(self, tensor):
        return None

    def wait(self, work):
        pass


def test_the_slots_of_a_version_are_those_of_the_next_unless_it_failed():
    made = []
    sender = CollectiveSender(lambda meeting: [Alone()], lambda: made.append([slots()]) or made[-1])
    sender.open("")
    for version in (1, 2):
        with sender.sending(version) as out:
            out.send(WEIGHTS.items())
    assert len(made) == 1
    with pytest.raises(ZeroDivisionError), sender.sending(3):
        raise ZeroDivisionError("what was on its way may still be read")
    with sender.sending(4) as out:
        out.send(WEIGHTS.items())
    assert len(made) == 2


@pytest.fixture
def receiver(store):
    """What a receiver says."""
    said = SimpleQueue()
    thread = threading.Thread(target=receive, args=(store.port, said.put))
    thread.start()
    yield said
    thread.join(TEST_TIMEOUT_SECONDS)


def open_sender(store):
    sender = CollectiveSender(lambda meeting: [joined(store.port, SOURCE, 2)], lambda: [slots()])
    sender.open("")
    return sender


def send(sender, version):
    with sender.sending(version) as out:
        out.send(WEIGHTS.items())


def test_a_source_whose_receiver_dies_is_told_whose_weights_it_was_sending(store):
    ours, theirs = forking().Pipe()
    process = forking().Process(target=receive_in_a_process, args=(store.port, theirs))
    process.start()
    try:
        sender = open_sender(store)
        send(sender, 1)
        assert ours.recv() == 5003
    finally:
        process.kill()
        process.join()
    with pytest.raises(
        PeerLost, match=f"^source train/0 of weights/actor or one that receives from it is gone.*{HANGS_UP}"
    ):
        send(sender, 2)


def test_a_receiver_whose_source_is_gone_is_told_which(store, receiver):
    sender = open_sender(store)
    send(sender, 1)
    assert receiver.get(timeout=TEST_TIMEOUT_SECONDS) == 5003
    sender.close()
    said = receiver.get(timeout=TEST_TIMEOUT_SECONDS)
    assert said.startswith("source train/0 of weights/actor or one that receives from it is gone")


def test_a_version_that_is_not_due_is_refused(store, receiver):
    sender = open_sender(store)
    send(sender, 1)
    assert receiver.get(timeout=TEST_TIMEOUT_SECONDS) == 5003
    with pytest.raises(PeerLost, match=HANGS_UP):  # the receiver
        send(sender, 3)
    said = receiver.get(timeout=TEST_TIMEOUT_SECONDS)
    assert said == "source train/0 of weights/actor sends version 3 where version 2 is due"


def test_who_does_not_come_is_waited_for_no_longer_than_the_deadline(store):
    with pytest.raises(PeerLost, match="source train/0 of weights/actor or one that receives from it"):
        joined(store.port, 1, 2, seconds=0.3)


def test_a_source_that_does_not_send_is_waited_for_no_longer_than_the_deadline(tmp_path):
    with way("Collective", tmp_path, 2, 1, seconds=0.5) as edge:
        edge.hold([[("a", torch.ones(2))], [("b", torch.ones(2))]])
        edge.assert_synced()
        # the fault of one trainer: nobody else waits for it for ever
        edge.policy.gathering.abort()
        errors = edge.sync()
        assert isinstance(errors[-1], PeerLost) and "of weights/actor or one that receives" in str(errors[-1])
        assert edge.samplers[0].version == 1


def test_a_store_that_is_gone_is_a_lost_peer():
    port = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False).port
    with pytest.raises(PeerLost):
        joined(port, 1, 2, seconds=0.3)


def test_sources_and_receivers_have_their_places():
    train, first, second = group("train", 2, 4, []), group("r0", 2, 2, []), group("r1", 1, 3, [])
    flow = WeightFlow("weights/actor", "actor", "Collective", train, (first, second))
    assert flow.source_ranks == (0, 2, 4, 6)
    assert (flow.num_receivers, flow.receivers_before("r0"), flow.receivers_before("r1")) == (7, 0, 4)


class Recorded(Alone):
    """Counts the bytes that go to it."""

    num_bytes = 0

    def broadcast(self, tensor):
        self.num_bytes += tensor.nbytes


def test_to_each_rank_of_a_copy_goes_what_it_keeps():
    """Of 16 rows a half each, and all of what both keep: less than a tenth beside that for heads and tables."""
    groups = [Recorded(), Recorded()]
    sender = CollectiveSender(lambda meeting: groups, lambda: [slots() for _ in groups])
    sender.open("")
    rows = torch.zeros(16, 1000)
    with sender.sending(1) as out:
        parts = sent_parts([("model.layers.0.mlp.up_proj.weight", rows), ("norm", torch.zeros(100))], SHARED)
        assert out.send(parts) == rows.nbytes + 2 * 400
    assert [item.num_bytes >= rows.nbytes // 2 + 400 for item in groups] == [True, True]
    assert max(item.num_bytes for item in groups) < 1.1 * (rows.nbytes // 2 + 400)
