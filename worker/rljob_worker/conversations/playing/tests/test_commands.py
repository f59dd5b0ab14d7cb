"""Peers of a copy do with their engines what the leader's conversations ask for."""

from __future__ import annotations

from dataclasses import replace
from queue import SimpleQueue
from threading import Thread

import numpy as np
import pytest

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.batch import Batch, Column
from rljob_worker.conversations.playing.commands import EngineCommands, shared_batch
from rljob_worker.conversations.playing.loop import Conversations
from rljob_worker.conversations.playing.plays import Play
from rljob_worker.conversations.playing.tests.playing import (
    BOUNDS,
    SAMPLING,
    FunctionWorld,
    LetterRenderer,
    SteppingEngine,
    content,
    play,
    tasks_of,
)
from rljob_worker.conversations.playing.tests.test_loop import answer_of, drawn, playful
from rljob_worker.engines.rollout.requests import PartialResponses
from rljob_worker.errors import BadData, PeerLost


class Leader:
    """Of a copy of two ranks that are threads."""

    is_leader = True
    has_peers = True

    def __init__(self, sent):
        self.sent = sent

    def from_leader(self, shape, work):
        try:
            result, rest = work()
        except BaseException:
            self.sent.put(None)
            raise
        assert result.shape == shape and result.dtype == np.float64
        self.sent.put(result.copy())
        return result, rest


class Peer(Leader):
    is_leader = False

    def from_leader(self, shape, work):
        result = self.sent.get(timeout=TEST_TIMEOUT_SECONDS)
        if result is None:
            raise PeerLost("the leader has failed")
        assert result.shape == shape
        return result, None


def test_likely_tokens_are_asked_for_by_the_turns_that_want_them_alone():
    nothing = np.empty(0, np.int64)
    asked = EngineCommands(
        np.array([4, 6, 8]), np.zeros(3, np.int64), np.full(3, 5), np.zeros(3, np.int64), Column.ragged([[1]]),
        nothing, nothing, False, top_log_probs=np.array([5, 0, 5]),
    )  # fmt: skip
    requests = EngineCommands.decoded(asked.encoded()).requests(SAMPLING)
    assert [requests.samplings[way].top_log_probs for way in requests.sampling_of] == [5, 0, 5]
    assert {replace(sampling, top_log_probs=0) for sampling in requests.samplings} == {SAMPLING}
    assert replace(asked, top_log_probs=nothing).requests(SAMPLING).samplings == (SAMPLING,)


def test_commands_are_those_that_were_encoded():
    sent = EngineCommands(
        row_ids=np.array([1 << 61, 4]),
        turns=np.array([0, 7]),
        max_tokens=np.array([5, 6]),
        prompt_of=np.array([0, 1]),
        prompts=Column.ragged([[1, 2, 3], [9]]),
        released=np.array([-1]),
        aborted=np.array([8, 9]),
        is_last=True,
        pictures=Column.binary([b"", b"eleven bytes"]),
        heard=np.array([4]),
        begun=PartialResponses(
            Column.ragged([[], [5, 6]]), Column.ragged([[], [-0.1, -2.5]], "float32"), Column.ragged([[], [3, 4]])
        ),
    )
    heard = EngineCommands.decoded(sent.encoded())
    assert heard.begun is not None and [row.tolist() for row in heard.begun.response_ids.to_list()] == [[], [5, 6]]
    assert heard.begun.log_probs.row(1).tolist() == np.float32([-0.1, -2.5]).tolist()
    assert heard.begun.token_versions.row(1).tolist() == [3, 4]
    assert heard.pictures is not None and heard.pictures.to_list() == [b"", b"eleven bytes"]
    for name in ("row_ids", "turns", "max_tokens", "prompt_of", "released", "aborted", "heard"):
        assert getattr(heard, name).tolist() == getattr(sent, name).tolist(), name
    assert [row.tolist() for row in heard.prompts.to_list()] == [[1, 2, 3], [9]] and heard.is_last


def on_a_peer(work):
    """Run a peer's part in a thread, and what it gave or raised."""
    sent, results = SimpleQueue(), []

    def run():
        try:
            results.append(work(Peer(sent)))
        except BaseException as error:
            results.append(error)

    thread = Thread(target=run)
    thread.start()
    return Leader(sent), thread, results


class InStep(SteppingEngine):
    """Of a copy: an engine whose ranks return from the same step, which here is when something has ended."""

    def wake(self):
        """It returns then."""


def test_a_peer_is_asked_what_the_leader_is_asked():
    engines = [InStep(drawn), InStep(drawn)]
    tasks = tasks_of("hi", "ho", "hu", group_size=3)
    alone = play(playful, tasks, SteppingEngine(drawn), caller=FunctionWorld(answer_of))

    def of_peer(copy):
        peer = Conversations(engines[1], None, None, BOUNDS)
        return peer.play(Play((), SAMPLING, "step-1"), copy)

    leader, thread, results = on_a_peer(of_peer)
    conversations = Conversations(engines[0], playful, LetterRenderer(), BOUNDS, caller=FunctionWorld(answer_of))
    tasks = tasks_of("hi", "ho", "hu", group_size=3)
    played = conversations.play(Play(tasks, SAMPLING, "step-1"), leader)
    thread.join()
    conversations.close()
    assert [content(item) for item in played] == [content(item) for item in alone]
    assert results == [[]] and engines[1].prompts == engines[0].prompts
    assert [r.row_ids.tolist() for r in engines[1].submitted] == [r.row_ids.tolist() for r in engines[0].submitted]
    assert not engines[1].held


def test_a_peer_ends_with_its_leader():
    def of_peer(copy):
        return Conversations(SteppingEngine(drawn), None, None, BOUNDS).play(Play((), SAMPLING, "step-1"), copy)

    leader, thread, results = on_a_peer(of_peer)

    async def silent(task, policy, world):
        world.metric("words", 0)

    conversations = Conversations(SteppingEngine(drawn), silent, LetterRenderer(), BOUNDS)

    def fails(trajectories):
        raise BadData("a reward answers nothing")

    with pytest.raises(BadData, match="a reward answers nothing"):
        conversations.play(Play(tasks_of("hi"), SAMPLING, "step-1", when_over=fails), leader)
    thread.join()
    conversations.close()
    assert isinstance(results[0], PeerLost)


def test_peers_have_the_leaders_rows():
    columns = {
        "response_ids": Column.ragged([[1, 2], [3]]),
        "source": Column.strings(["a", "b"]).per_group_at(np.array([0, 1]), 2),
        "rewards": Column.fixed([0.5, float("nan")]),
    }
    rows = Batch.build([4, 6], [1, 2], columns, [3, 1 << 40])
    leader, thread, results = on_a_peer(lambda copy: shared_batch(copy, lambda: rows))
    shared_batch(leader, lambda: rows)
    thread.join()
    (heard,) = results
    assert heard.row_ids.tolist() == [4, 6] and heard.num_tokens.tolist() == [3, 1 << 40]
    for name, column in columns.items():
        assert heard.columns[name].is_like(column)
        assert repr(heard.columns[name].to_list()) == repr(column.to_list())
