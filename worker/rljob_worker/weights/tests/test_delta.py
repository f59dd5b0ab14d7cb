"""Weight deltas: which tensors are sent whole and which as changes."""

from contextlib import contextmanager

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rljob_worker.errors import PeerLost
from rljob_worker.weights.chunks import flat_bytes
from rljob_worker.weights.delta import DeltaLoader, DeltaSender, changed_places

INT32 = torch.int32


class Wire:
    """A way that keeps what was sent of the last version."""

    def __init__(self):
        self.sent = {}

    def open(self, meeting):
        self.meeting = meeting

    @contextmanager
    def sending(self, version, keep=()):
        self.sent = {}
        yield self

    def send(self, bucket):
        for name, tensor in bucket:
            self.sent[name] = tensor.clone()

    def close(self):
        """There is nothing to close."""


class Engine:
    """Keeps the bits that it was given."""

    def __init__(self):
        self.tensors = {}

    def load_weights(self, weights, version, *, lasting=False):
        self.tensors = {name: tensor.clone() for name, tensor in weights}


def send(sender, version, **tensors):
    with sender.sending(version) as out:
        for item in tensors.items():  # a bucket each
            out.send(iter([item]))


def sender_of(full_every=9):
    wire = Wire()
    return DeltaSender(wire, full_every), wire


def loader_of(version=7, **tensors):
    """A loader that has this version."""
    loader = DeltaLoader(Engine())
    loader.load_weights(tensors.items(), version)
    return loader


def changes(name="w", base=7, places=(1,), values=(5.0,), place_type=INT32, dtype=torch.float32):
    return [
        (f"{name}:{base}:places", torch.tensor(places, dtype=place_type)),
        (f"{name}:{base}:values", torch.tensor(values, dtype=dtype)),
    ]


def test_of_a_tensor_the_places_and_values_that_changed_are_sent():
    sender, wire = sender_of()
    send(sender, 7, w=torch.zeros(2, 4), v=torch.ones(3))
    assert list(wire.sent) == ["w", "v"]
    now = torch.zeros(2, 4)
    now[1, 2] = 5  # position 6
    send(sender, 9, w=now, v=torch.ones(3))
    assert list(wire.sent) == ["w:7:places", "w:7:values", "v:7:places", "v:7:values"]
    assert (wire.sent["w:7:places"].dtype, wire.sent["w:7:places"].tolist()) == (INT32, [6])
    assert wire.sent["w:7:values"].tolist() == [5.0] and len(wire.sent["v:7:places"]) == 0
    send(sender, 10, w=now, v=torch.ones(3))
    assert all(name.split(":")[1] == "9" and tensor.numel() == 0 for name, tensor in wire.sent.items())


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 5), (torch.bfloat16, 3), (torch.float64, 7)])
def test_a_tensor_goes_whole_where_changes_are_as_many_bytes(dtype, most):
    # of 12 values 5 x (4 + 4) < 48 <= 6 x 8; of bfloat16 3 x (4 + 2) < 24 <= 4 x 6; of float64 7 x 12 < 96 <= 8 x 12
    for num_changed, whole in ((most, False), (most + 1, True)):
        sender, wire = sender_of()
        send(sender, 1, w=torch.zeros(12, dtype=dtype))
        now = torch.zeros(12, dtype=dtype)
        now[:num_changed] = 1
        send(sender, 2, w=now)
        assert ("w" in wire.sent) is whole
        send(sender, 3, w=now)
        assert len(wire.sent["w:2:places"]) == 0


def test_everything_is_sent_every_so_often():
    sender, wire = sender_of(full_every=3)
    whole = []
    for version in range(7):
        send(sender, version, w=torch.zeros(4))
        whole.append("w" in wire.sent)
    assert whole == [True, False, False, True, False, False, True]


def test_everything_is_sent_after_a_version_that_was_not():
    sender, wire = sender_of()
    send(sender, 1, w=torch.zeros(4), v=torch.zeros(4))
    with pytest.raises(ZeroDivisionError), sender.sending(2) as out:
        out.send([("w", torch.zeros(4))])
        raise ZeroDivisionError  # before v
    send(sender, 3, w=torch.zeros(4), v=torch.zeros(4))
    assert list(wire.sent) == ["w", "v"]


def test_a_tensor_that_another_source_sent_last_goes_whole():
    sender, wire = sender_of()
    send(sender, 1, w=torch.zeros(4), v=torch.zeros(4))
    send(sender, 2, v=torch.zeros(4))
    send(sender, 3, w=torch.zeros(4), v=torch.zeros(4))
    assert list(wire.sent) == ["w", "v:2:places", "v:2:values"]


def test_a_tensor_of_another_shape_or_type_goes_whole():
    for other in (torch.zeros(2, 2), torch.zeros(4, dtype=torch.int32)):
        sender, wire = sender_of()
        send(sender, 1, w=torch.zeros(4))
        send(sender, 2, w=other)
        assert list(wire.sent) == ["w"]


def test_memory_that_is_used_again_is_not_what_is_compared_with():
    sender, wire = sender_of()
    memory = torch.zeros(8)
    send(sender, 1, w=memory)
    memory[3] = 1
    send(sender, 2, w=memory)
    assert wire.sent["w:1:places"].tolist() == [3]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int8])
def test_bits_are_compared_and_not_values(dtype):
    one = torch.zeros(4, dtype=dtype)
    assert changed_places(one, one.clone()).tolist() == []
    if dtype.is_floating_point:
        nan = torch.full((4,), float("nan"), dtype=dtype)
        assert changed_places(nan, nan.clone()).tolist() == []
        assert changed_places(one, -one).tolist() == [0, 1, 2, 3]  # -0.0 equals 0.0


STEPS = st.lists(st.lists(st.tuples(st.integers(0, 19), st.sampled_from([0.0, -0.0, 1.0])), max_size=9), max_size=6)


@given(steps=STEPS, full_every=st.integers(2, 4), backwards=st.booleans(), dtype=st.sampled_from([0, 1]))
def test_what_arrives_is_bit_for_bit_what_was_sent(steps, full_every, backwards, dtype):
    dtype = (torch.float32, torch.bfloat16)[dtype]
    sender, wire = sender_of(full_every)
    engine = Engine()
    loader = DeltaLoader(engine)
    tensors = {"a": torch.zeros(4, 5, dtype=dtype), "b": torch.zeros((), dtype=dtype), "c": torch.zeros(0, 3)}
    for version, step in enumerate([[], *steps]):
        for place, value in step:
            tensors["a"].view(-1)[place] = value
        send(sender, version, **tensors)
        arriving = list(wire.sent.items())
        loader.load_weights(reversed(arriving) if backwards else arriving, version)
        assert set(engine.tensors) == set(tensors)
        for name, tensor in tensors.items():
            assert engine.tensors[name].shape == tensor.shape
            assert torch.equal(flat_bytes(engine.tensors[name]), flat_bytes(tensor))


def test_changes_to_another_version_are_refused_by_name():
    with pytest.raises(PeerLost, match="the weights w came as changes to version 6, but version 7 is here"):
        loader_of(w=torch.zeros(4)).load_weights(changes(base=6), 8)
    with pytest.raises(PeerLost, match="the weights w came as changes to version 7, but no whole version is here"):
        DeltaLoader(Engine()).load_weights(changes(), 8)


def test_after_a_version_that_failed_only_a_whole_one_is_taken():
    loader = loader_of(w=torch.zeros(4))
    with pytest.raises(PeerLost):
        loader.load_weights(changes()[:1], 8)
    with pytest.raises(PeerLost, match="no whole version is here"):
        loader.load_weights(changes(), 9)
    loader.load_weights([("w", torch.zeros(4))], 10)
    loader.load_weights(changes(base=10), 11)


@pytest.mark.parametrize(("part", "what"), [(0, "places"), (1, "values")])
def test_a_part_that_is_missing_is_told_by_name(part, what):
    with pytest.raises(PeerLost, match=f"of what changed in the weights w only the {what} came"):
        loader_of(w=torch.zeros(4)).load_weights([changes()[part]], 8)


def test_changes_that_come_twice_or_of_a_tensor_that_is_not_here_are_refused():
    for arriving in (changes("v"), changes() + changes(), [("w", torch.zeros(4)), *changes()]):
        with pytest.raises(PeerLost, match="changes of the weights . came twice, or to weights that are not here"):
            loader_of(w=torch.zeros(4)).load_weights(arriving, 8)


@pytest.mark.parametrize(
    ("lie", "said"),
    [
        ({"places": (1, 2)}, "does not fit"),
        ({"place_type": torch.int64}, "does not fit"),
        ({"dtype": torch.float64}, "does not fit"),
        ({"places": ((1,),), "values": ((5.0,),)}, "does not fit"),
        ({"places": (4,)}, "is outside of their 4 values"),
        ({"places": (-1,)}, "is outside of their 4 values"),
    ],
)
def test_changes_that_do_not_fit_are_refused_by_name(lie, said):
    with pytest.raises(PeerLost, match=f"what changed in the weights w {said}"):
        loader_of(w=torch.zeros(4)).load_weights(changes(**lie), 8)


@pytest.mark.parametrize("name", ["w:places", "w:x:places", "w:7:rest"])
def test_a_name_that_is_no_part_is_refused(name):
    with pytest.raises(PeerLost, match=f"the weights {name} are neither a tensor nor what changed in one"):
        loader_of(w=torch.zeros(4)).load_weights([(name, torch.zeros(1))], 8)


def test_a_whole_tensor_may_come_among_changes():
    loader = loader_of(w=torch.zeros(4), v=torch.zeros(4))
    loader.load_weights([*changes(), ("v", torch.ones(4))], 8)
    loader.load_weights(changes("w", 8, (0,), (2.0,)) + changes("v", 8, (3,), (9.0,)), 9)
