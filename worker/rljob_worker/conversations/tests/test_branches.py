"""Conversations as agents send them: which row a turn is in, what is recorded, and what a cancelled turn leaves."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from rljob_worker.conversations.playing.tests.playing import LetterRenderer, ids, tasks_of, text
from rljob_worker.conversations.policy import Bounds, ConversationOver, Policy
from rljob_worker.conversations.row_sampling import RowsInUse
from rljob_worker.conversations.trajectory import Sampled, Trajectory
from rljob_worker.engines.rollout.requests import Ending

HI = {"role": "user", "content": "hi"}


def said(content):
    return {"role": "assistant", "content": content}


class Game:
    """Branches over an engine that says `a`, `b`, … in the order of turns; it waits where there is a gate."""

    def __init__(self, rows=3, turns=8, tokens=200):
        (task,) = tasks_of("hi")
        self.trajectory, self.gate, self.requests = Trajectory(task), None, []
        bounds = Bounds(turns, rows, tokens, 2 * tokens)
        self.branches = Policy(self.trajectory, LetterRenderer(), bounds, self._generate).branches()

    async def _generate(self, request):
        self.requests.append((request.row_index, request.turn, text(request.sequence)))
        if self.gate is not None:
            await self.gate.wait()
        tokens = ids("abcdefgh"[request.turn] + "~")[: request.max_tokens]
        ending = Ending.END_TOKEN if len(tokens) == 2 else Ending.LENGTH
        return Sampled(tokens, np.full(len(tokens), -0.5, np.float32), np.zeros(len(tokens), np.int64), ending)

    @property
    def rows(self):
        return [(text(row.prompt), text(row.response_ids)) for row in self.trajectory.rows]


def test_a_conversation_that_goes_on_stays_in_its_row():
    async def play(game):
        assert (await game.branches.reply([HI])).message.content == "a"
        turn = await game.branches.reply([HI, said(" a "), {"role": "user", "content": "more"}])
        assert (text(turn.prompt), text(turn.sampled.tokens)) == ("[u:hi][a:a~][u:more][a:", "b~")
        assert game.rows == [("[u:hi][a:", "a~][u:more][a:b~")]
        assert game.trajectory.rows[0].mask.tolist() == [1, 1] + [0] * 12 + [1, 1]
        assert [message["content"] for message in game.trajectory.messages] == ["hi", "a", "more", "b"]

    asyncio.run(play(Game()))


def test_what_an_agent_rewrote_asked_otherwise_or_with_other_tools_opens_a_row():
    async def play(game):
        await game.branches.reply([HI])
        await game.branches.reply([HI, said("rewritten"), HI])
        await game.branches.reply([HI])  # the same question once more
        assert [prompt for prompt, _ in game.rows] == ["[u:hi][a:", "[u:hi][a:rewritten][u:hi][a:", "[u:hi][a:"]
        # the third row goes on, as the conversation is its; the first one could as well
        await game.branches.reply([HI, said("c"), HI])
        assert game.rows[2][1] == "c~][u:hi][a:d~"
        with pytest.raises(ConversationOver):
            await game.branches.reply([HI, said("a"), HI], tools=["t"])
        assert game.trajectory.truncated and game.branches.is_over

    asyncio.run(play(Game()))


def test_parallel_branches_are_rows_and_beyond_those_a_call_has_to_wait():
    async def play(game):
        await game.branches.reply([HI])
        game.gate = asyncio.Event()
        more = [[HI, said("a"), {"role": "user", "content": letter}] for letter in "xy"]
        calls = [asyncio.ensure_future(game.branches.reply(messages)) for messages in more]
        await asyncio.sleep(0)
        with pytest.raises(RowsInUse, match="2 rows are in use"):
            await game.branches.reply([HI])
        game.gate.set()
        assert [(await call).message.content for call in calls] == ["b", "c"]
        assert game.rows == [("[u:hi][a:", "a~][u:x][a:b~"), ("[u:hi][a:a][u:y][a:", "c~")]
        assert not game.trajectory.truncated

    asyncio.run(play(Game(rows=2)))


def test_a_cancelled_turn_leaves_nothing_and_is_drawn_again_as_it_was():
    async def play(game):
        game.gate = asyncio.Event()
        for _ in range(2):
            call = asyncio.ensure_future(game.branches.reply([HI]))
            await asyncio.sleep(0)
            call.cancel()
            await asyncio.wait({call})
        game.gate.set()
        await game.branches.reply([HI])
        second = asyncio.ensure_future(game.branches.reply([HI, said("a"), HI]))
        game.gate.clear()
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait({second})
        game.gate.set()
        await game.branches.reply([HI, said("a"), HI])
        assert game.requests[:3] == [(0, 0, "[u:hi][a:")] * 3 and game.requests[3] == game.requests[4]
        assert game.rows == [("[u:hi][a:", "a~][u:hi][a:b~")] and game.trajectory.num_turns == 2

    asyncio.run(play(Game(rows=1)))


def test_tokens_that_begin_with_a_row_continue_it():
    async def play(game):
        await game.branches.generate(ids("xy"))
        await game.branches.generate(ids("xya~zz"))
        await game.branches.generate(ids("xya-zz"), max_tokens=1)
        assert game.rows == [("xy", "a~zzb~"), ("xya-zz", "c")]
        assert game.trajectory.rows[0].mask.tolist() == [1, 1, 0, 0, 1, 1] and not game.branches.is_over

    asyncio.run(play(Game()))


def test_out_of_turns_or_tokens_the_conversation_is_over():
    async def play(game, *calls):
        for messages in calls[:-1]:
            await game.branches.reply(messages)
        with pytest.raises(ConversationOver):
            await game.branches.reply(calls[-1])
        assert game.trajectory.truncated

    asyncio.run(play(Game(turns=1), [HI], [HI, said("a"), HI]))
    # 12 tokens: `a~` and the 10 of `][u:hi][a:`, after which there is room for none
    asyncio.run(play(Game(tokens=12), [HI], [HI, said("a"), HI]))
