"""Turns of one trajectory that are sampled in parts, and likely tokens beside them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from rljob_worker.conversations.journal.records import records_of
from rljob_worker.conversations.journal.replay import DoesNotReplay, Journal
from rljob_worker.conversations.journal.tests.test_replay import Written
from rljob_worker.conversations.playing.tests.playing import tasks_of
from rljob_worker.conversations.playing.turns import RoundTokens, Turns
from rljob_worker.conversations.row_sampling import TurnRequest
from rljob_worker.conversations.trajectory import Sampled, TokenRow
from rljob_worker.engines.rollout.requests import Ending, TopLogProbs


async def in_order(task, request, part, most):
    """Tokens 0, 1, 2, ... after which 10, 11, 12, ... are as likely, and 20, 21, 22, ..."""
    tokens, new = np.arange(most), np.arange(len(part), most, dtype=np.int32)[:, None]
    ids = new + 10 * np.arange(request.top_log_probs, dtype=np.int32)
    top = TopLogProbs(ids, np.broadcast_to(new, ids.shape).astype(np.float32)) if request.top_log_probs else None
    return Sampled(tokens, -tokens.astype(np.float32), np.zeros(most, np.int64), Ending.LENGTH, top)


def asked(number):
    return TurnRequest(0, 0, TokenRow(np.array([5])), np.empty(0, np.int64), max_tokens=6, top_log_probs=number)


def sampled(number, entries=None, record=None, per_round=4, generate=in_order, is_last=False):
    """One turn, in as many rounds as it takes. is_last: whether there is no round behind the first."""
    journal = Journal(0, 0, record, entries)

    async def play():
        resting = asyncio.Event()
        turns = Turns(tasks_of("hi")[0], journal, generate, lambda: 0, lambda turns: resting.set())
        turns.tokens = RoundTokens(per_round, is_last=is_last)
        turn = asyncio.ensure_future(turns.sample(asked(number)))
        while not turn.done():
            await asyncio.wait([turn, waiting := asyncio.ensure_future(resting.wait())], return_when="FIRST_COMPLETED")
            waiting.cancel()
            if resting.is_set():
                resting.clear()
                turns.tokens = RoundTokens(per_round)
                turns.go_on()
        return turn.result()

    return asyncio.run(play())


def together(turns):
    async def play():
        return await asyncio.gather(*turns)

    return asyncio.run(play())


async def nobody(task, request, part, most):
    raise AssertionError("all of it is recorded")


@pytest.mark.parametrize("per_round", [1, 4, 9])
def test_likely_tokens_of_a_turn_are_whole_however_many_rounds_and_restarts_it_took(per_round):
    entries = Written()
    first = sampled(2, entries, per_round=per_round)
    assert first.top_log_probs.tokens.tolist() == [[at, at + 10] for at in range(6)]
    again = sampled(2, record=records_of(entries)[0, 0], per_round=2, generate=nobody)
    assert again.top_log_probs.tokens.tolist() == first.top_log_probs.tokens.tolist()
    assert again.top_log_probs.log_probs.tolist() == first.top_log_probs.log_probs.tolist()
    assert sampled(0, record=records_of(entries)[0, 0], generate=nobody).tokens.tolist() == list(range(6))


def test_a_turn_that_is_cut_has_likely_tokens_of_what_it_keeps():
    entries = Written()
    sampled(2, entries, per_round=9)
    cut = sampled(2, record=records_of(entries)[0, 0], per_round=3, generate=nobody, is_last=True)
    assert len(cut) == 3 and cut.top_log_probs.tokens.tolist() == [[0, 10], [1, 11], [2, 12]]


@pytest.mark.parametrize("number", [1, 0])
def test_a_turn_that_goes_on_with_fewer_likely_tokens_than_it_began_with_has_these(number):
    entries = Written()
    sampled(3, entries)
    paused, later = records_of(line for line in entries if b"paused" in line), Written()
    turn = sampled(number, later, paused[0, 0], per_round=9)
    whole = sampled(number, record=records_of(later)[0, 0], generate=nobody)
    for item in (turn, whole):
        assert item.tokens.tolist() == list(range(6)) and (item.top_log_probs is None) == (not number)
        assert item.top_log_probs is None or item.top_log_probs.tokens.tolist() == [[at] for at in range(6)]


def test_equal_turns_at_once_replay_in_any_order_with_the_likely_tokens_that_each_asks_for():
    def at_once(*numbers, record=None, entries=None):
        turns = Turns(tasks_of("hi")[0], Journal(0, 0, record, entries), in_order, lambda: 0, lambda turns: None)
        return together([turns.sample(replace(asked(number), turn=at)) for at, number in enumerate(numbers)])

    entries = Written()
    at_once(3, 0, 1, entries=entries)
    for numbers in [(0, 3, 1), (1, 0, 3), (0, 1, 3)]:
        again = at_once(*numbers, record=records_of(entries)[0, 0])
        tops = [item.top_log_probs for item in again]
        assert [0 if top is None else top.tokens.shape[1] for top in tops] == list(numbers)


@pytest.mark.parametrize(("recorded", "number"), [(0, 1), (2, 3)])
def test_likely_tokens_that_are_not_recorded_do_not_replay(recorded, number):
    entries = Written()
    sampled(recorded, entries)
    with pytest.raises(DoesNotReplay, match=f"turn 0 asks for {number} top_logprobs, and .* recorded with {recorded}"):
        sampled(number, record=records_of(entries)[0, 0], generate=nobody)
