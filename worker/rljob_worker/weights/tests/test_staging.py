"""The next version comes while the engine decodes with the version before."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.batch import Column
from rljob_worker.engines.models import load_policy
from rljob_worker.engines.rollout.requests import Requests, Sampling
from rljob_worker.engines.rollout.tests.subjects import CPU, END, write_model
from rljob_worker.engines.rollout.transformers import TransformersRollout
from rljob_worker.errors import DeadlineExceeded, PeerLost
from rljob_worker.tests.waiting import wait_for
from rljob_worker.weights.chunks import Received, pack_tensors
from rljob_worker.weights.endpoints import Named, SliceLoader
from rljob_worker.weights.slices import kept_by
from rljob_worker.weights.staging import StagingTarget

KEPT = kept_by(0)


@dataclass
class Chunk:
    data: torch.Tensor
    table: bytes


@dataclass
class Chunks:
    """Slots, which are all sent."""

    slot_bytes: int
    sealed: list[Chunk] = field(default_factory=list)

    def reserve(self, num_bytes: int) -> torch.Tensor:
        self.room = torch.empty(num_bytes, dtype=torch.uint8)
        return self.room

    def seal(self, table: bytes, num_bytes: int | None = None) -> None:
        self.sealed.append(Chunk(self.room[:num_bytes], table))


def chunks_of(tensors: Iterable[Named], slot_bytes: int = 4096) -> list[Chunk]:
    result = Chunks(slot_bytes)
    pack_tensors(result, tensors)
    return result.sealed


@dataclass
class Source:
    """A receiver that gives a chunk each time that somebody lets it."""

    versions: dict[int, list[Chunk]]
    let: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    taken: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    """Released once a chunk was read."""
    fails_after: int | None = None
    """Chunks after which the peer is lost."""
    deadlines: int = 0
    """Calls that wait in vain before their next chunk."""
    num_given: int = 0
    """Chunks of the version that have been given, over all calls."""

    def open(self, meeting: str) -> None: ...

    def close(self) -> None: ...

    def receive(self, version: int) -> Generator[Received, None, None]:
        while self.num_given < len(self.versions[version]):
            if self.num_given == self.fails_after:
                raise PeerLost("the data buffer of host train-0 is gone")
            if self.num_given and self.deadlines:
                self.deadlines -= 1
                raise DeadlineExceeded("2 sources are late")
            assert self.let.acquire(timeout=TEST_TIMEOUT_SECONDS)
            self.num_given += 1
            yield self.versions[version][self.num_given - 1]
            self.taken.release()
        self.num_given = 0

    def give_one(self) -> None:
        self.let.release()
        assert self.taken.acquire(timeout=TEST_TIMEOUT_SECONDS)


class Loaded:
    """An engine, as far as weights go."""

    def __init__(self) -> None:
        self.version = 0
        self.tensors: dict[str, torch.Tensor] = {}

    def load_weights(self, weights: Iterable[Named], version: int, *, lasting: bool = False) -> None:
        assert lasting
        self.version, self.tensors = version, dict(weights)


def numbered(version: int) -> list[Named]:
    """One that goes in three chunks, and a small one."""
    return [("cut", torch.full((3000,), float(version))), ("small", torch.full((4,), float(-version)))]


def target(source: Source) -> tuple[StagingTarget, Loaded]:
    engine = Loaded()
    return StagingTarget(engine, source, KEPT, CPU), engine


def source_of(*versions: int, **fields: int | None) -> Source:
    return Source({version: chunks_of(numbered(version)) for version in versions}, **fields)  # type: ignore[arg-type]


def let_all(source: Source) -> None:
    source.let.release(1000)


def test_a_version_is_taken_before_it_is_asked_for_and_given_to_the_engine_when_it_is() -> None:
    source = source_of(1, 2)
    staging, engine = target(source)
    let_all(source)
    metrics = staging.sync(1)
    assert metrics["weights/received_bytes"].value == 3000 * 4 + 4 * 4
    staging.stage(2)
    for _ in source.versions[2]:
        assert source.taken.acquire(timeout=TEST_TIMEOUT_SECONDS)
    assert engine.version == 1
    staging.sync(2)
    assert engine.version == 2 and {name: float(item[0]) for name, item in engine.tensors.items()} == {
        "cut": 2.0,
        "small": -2.0,
    }


def test_memory_is_used_again_version_after_version_and_given_back_for_what_is_not_sent_again() -> None:
    source = source_of(1, 2)
    source.versions[3] = chunks_of(numbered(3)[:1])
    staging, engine = target(source)
    let_all(source)
    staging.sync(1)
    places = {name: item.data_ptr() for name, item in engine.tensors.items()}
    unused = weakref.ref(engine.tensors["small"])
    for version in (2, 3):
        staging.sync(version)
        assert {name: item.data_ptr() for name, item in engine.tensors.items()}.items() <= places.items()
    assert set(engine.tensors) == {"cut"} and unused() is None


def test_a_peer_that_is_lost_on_the_way_leaves_the_engine_with_the_version_before() -> None:
    source = source_of(1, 2)
    staging, engine = target(source)
    let_all(source)
    staging.sync(1)
    source.fails_after = 2
    staging.stage(2)
    with pytest.raises(PeerLost, match="train-0 is gone"):
        staging.sync(2)
    assert engine.version == 1


def test_no_deadline_counts_until_the_version_is_awaited() -> None:
    """A call waits in vain while it is staged; what has come of a tensor is not lost with it."""
    source = source_of(1, deadlines=1)
    staging, engine = target(source)
    staging.stage(1)
    source.give_one()
    let_all(source)
    staging.sync(1)
    assert source.deadlines == 0 and float(engine.tensors["cut"].sum()) == 3000


def test_a_version_that_is_awaited_has_a_deadline() -> None:
    source = source_of(1, deadlines=1 << 40)  # more than a thread meets before somebody waits
    staging, _ = target(source)
    let_all(source)
    with pytest.raises(DeadlineExceeded, match="2 sources are late"):
        staging.sync(1)


def test_a_version_that_is_staged_may_be_passed_over() -> None:
    source = source_of(1, 2)
    staging, engine = target(source)
    let_all(source)
    staging.stage(1)
    staging.pass_over(1)
    staging.sync(2)
    assert engine.version == 2
    staging.pass_over(1)
    assert engine.version == 2


def test_of_a_version_that_is_passed_over_and_not_staged_nothing_is_kept() -> None:
    """It is not even looked at."""
    source = source_of(1)
    source.versions[1] = [Chunk(torch.zeros(8, dtype=torch.uint8), b"no table")] * 3
    staging, engine = target(source)
    let_all(source)
    staging.pass_over(1)
    assert engine.version == 0 and source.num_given == 0


def test_a_plane_that_refuses_at_once_is_not_asked_without_end() -> None:
    """Until somebody waits: once more then, whose answer counts."""
    source = source_of(1, deadlines=1 << 40)
    staging, _ = target(source)
    staging.stage(1)
    source.give_one()
    wait_for(lambda: source.deadlines < 1 << 40)
    with pytest.raises(DeadlineExceeded):
        staging.sync(1)
    assert (1 << 40) - source.deadlines < 10


def drawn(engine: TransformersRollout, row_id: int) -> list[int]:
    """Tokens of one response, drawn to its end."""
    requests = Requests(
        row_ids=np.array([row_id]),
        turns=np.zeros(1, np.int64),
        prompts=Column.ragged([np.array([5, 7, 11])]),
        prompt_of=np.zeros(1, np.int64),
        max_tokens=np.array([24]),
        samplings=(Sampling(seed=3),),
    )
    engine.submit(requests)
    ended = engine.advance()
    while not len(ended):
        ended = engine.advance()
    return [int(token) for token in ended.response_ids.values]


def test_an_engine_decodes_while_slices_come_and_then_computes_with_them(tmp_path: Path) -> None:
    """A step for every chunk: none waits for another chunk."""
    old, new = (load_policy(write_model(tmp_path / str(seed), seed), torch.float32, CPU) for seed in (0, 1))
    weights = [(name, item.detach()) for name, item in new.named_parameters()]
    source = Source({1: chunks_of(weights), 2: chunks_of((name, 2 * item) for name, item in weights)})
    engine = TransformersRollout(old, CPU, (END,))
    staging = StagingTarget(SliceLoader(engine), source, KEPT, CPU)
    before = drawn(engine, row_id=0)
    staging.stage(1)
    num_steps = 0
    for _ in source.versions[1]:
        source.give_one()
        assert drawn(engine, row_id=0) == before and engine.version == 0
        num_steps += len(before)
    assert num_steps >= len(source.versions[1]) > 30
    staging.sync(1)
    directly = TransformersRollout(new, CPU, (END,))
    assert engine.version == 1 and drawn(engine, row_id=0) == drawn(directly, row_id=0) != before
    staging.stage(2)
    source.give_one()
    assert drawn(engine, row_id=1) == drawn(directly, row_id=1)
    let_all(source)
    staging.pass_over(2)
