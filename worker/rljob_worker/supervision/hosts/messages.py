"""What launchers say to each other, checked against these types as it is read."""

from __future__ import annotations

import msgspec

from rljob_worker.local.pods.pods import AddressLists, GangEnd


class _Message(msgspec.Struct, frozen=True, tag=True):
    pass


class Hello(_Message, frozen=True):
    """A host comes: its first message."""

    host: int
    num_hosts: int
    name: str
    """The machine's own."""
    version: str
    """Version of rljob."""
    job: str
    sections: dict[str, str]
    """By section of the spec: a digest."""
    plan: str
    """The plan's hash; empty where the host could make none."""
    flaws: tuple[str, ...] = ()
    """What keeps its pod from running there."""


class BeginAttempt(_Message, frozen=True):
    """An attempt begins: start your data buffers."""

    attempt: int
    resume: str
    address: str
    """By which the others reach you."""
    mark: str
    """What the run directory holds, where it has to be the same for all; empty: it does not."""
    authority: bytes = b""
    """PEM, as all that follow; empty: the job has no dataBuffer.tls."""
    pairs: dict[str, tuple[bytes, bytes]] = {}
    """Certificate and key, by pod of the host."""
    services: dict[str, str] = {}
    """Where those of the job answer, by name."""


class Serving(_Message, frozen=True):
    """The data buffers serve."""

    attempt: int
    addresses: AddressLists


class PeersReady(_Message, frozen=True):
    """All of them serve: start your workers."""

    attempt: int
    address_book: AddressLists


class MetricsReady(_Message, frozen=True):
    """The lead's launcher answers Prometheus."""

    attempt: int
    metrics_url: str


class RunNews(_Message, frozen=True):
    """What is to be told to whoever watches the run."""

    attempt: int
    words: str


class Asked(_Message, frozen=True):
    """Somebody asked this host to stop, this many times by now."""

    times: int


class StopWorkers(_Message, frozen=True):
    """Have your workers checkpoint and end."""

    attempt: int


class AttemptEnded(_Message, frozen=True):
    """The pods of the host have come to their end."""

    attempt: int
    end: GangEnd


class Clear(_Message, frozen=True):
    """End what is left of the attempt."""

    attempt: int


class Cleared(_Message, frozen=True):
    """Nothing of it is left."""

    attempt: int


class Finish(_Message, frozen=True):
    """It is over: leave with this code, and say why."""

    code: int
    words: str


OfHost = Hello | Serving | MetricsReady | RunNews | Asked | AttemptEnded | Cleared
OfHost0 = BeginAttempt | PeersReady | StopWorkers | Clear | Finish

_ENCODER = msgspec.msgpack.Encoder()
_OF_HOST: msgspec.msgpack.Decoder[OfHost] = msgspec.msgpack.Decoder(OfHost)
_OF_HOST_0: msgspec.msgpack.Decoder[OfHost0] = msgspec.msgpack.Decoder(OfHost0)


def encode_message(message: OfHost | OfHost0) -> bytes:
    return _ENCODER.encode(message)


def read_of_host(data: bytes) -> OfHost:
    """Raises msgspec.DecodeError, as `read_of_host_0` does."""
    return _OF_HOST.decode(data)


def read_of_host_0(data: bytes) -> OfHost0:
    return _OF_HOST_0.decode(data)
