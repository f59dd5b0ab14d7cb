"""Conversations over the engine of transformers: what is recorded is what the model was given, with its log-probs."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rljob_worker.conversations.journal.records import records_of
from rljob_worker.conversations.journal.tests.test_replay import Written
from rljob_worker.conversations.messages import AssistantMessage
from rljob_worker.conversations.playing.tests.playing import FunctionWorld, LetterRenderer, content, play, tasks_of
from rljob_worker.conversations.policy import Bounds
from rljob_worker.engines.rollout.tests.subjects import END, transformers_engine, write_model
from rljob_worker.errors import BadData

BOUNDS = Bounds(turns=4, rows=2, response_tokens=90, row_tokens=140)


class ModelLetters(LetterRenderer):
    """The letters of the tests' model, of which each is one token."""

    def opening(self, messages, tools=None):
        return to_model(super().opening(messages, tools))

    def following(self, before, new, tools=None, *, is_closed=True):
        tokens = super().following(before, new, tools, is_closed=is_closed)
        return None if tokens is None else to_model(tokens)

    def parse(self, token_ids, *, turn=0, tools=None):
        said = "".join(chr(32 + token) for token in token_ids if token != END)
        return AssistantMessage(said, finish_reason="Stop" if END in token_ids else "Length")

    def begin_turn(self):
        return SimpleNamespace(read=lambda token_ids: ("", self.parse(token_ids).content))

    def require_tokens(self, token_ids, begin=0):
        if not all(0 <= token < 96 for token in token_ids):
            raise BadData("there are 96 letters")

    def texts_of(self, token_ids):
        return [bytes([32 + token]) for token in token_ids]


def to_model(tokens):
    return np.where(tokens == 0, END, tokens - 32)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


async def chatty(task, policy, world):
    """Ends turns after a few tokens, with answers of the world between them."""
    await policy.chat(max_tokens=int(task.random.integers(2, 12)))
    while not policy.is_over:
        answer = await world.call("echo", {"turn": world.turns})
        await policy.chat([{"role": "tool", "content": answer.value}], max_tokens=int(task.random.integers(2, 12)))


def echo(session, target, method, arguments):
    return "heard " + "o" * arguments["turn"]


class Slowly(FunctionWorld):
    """Answers come at other times than they were asked for."""

    async def call(self, *arguments, key=""):
        await asyncio.sleep(float(self.delays.random()) / 100)
        return await super().call(*arguments)


@pytest.mark.parametrize("keeps", [True, False])
def test_log_probs_are_those_of_the_rows_that_were_recorded(path, keeps):
    tasks = tasks_of("hi", "what is it?", "no", group_size=3)
    engine = transformers_engine(path)
    world = Slowly(echo, np.random.default_rng(0))
    played = play(chatty, tasks, engine, bounds=BOUNDS, renderer=ModelLetters(keeps=keeps), caller=world)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    assert {item.num_turns for item in played} == ({4} if keeps else {2}) and not any(item.failed for item in played)
    for row in (row for item in played for row in item.rows):
        tokens, mask = row.response_ids, row.mask.astype(bool)
        with torch.no_grad():
            logits = model(torch.tensor(row.sequence())[None]).logits[0, len(row.prompt) - 1 : -1]
        expected = torch.log_softmax(logits, -1).gather(1, torch.tensor(tokens)[:, None])[:, 0].numpy()
        np.testing.assert_allclose(row.log_probs[mask], expected[mask], atol=1e-5)
        assert not row.log_probs[~mask].any() and mask.any()


def test_a_play_gives_the_same_tokens_again_after_a_kill_and_in_any_order(path):
    def played(seed, concurrency, **options):
        world = Slowly(echo, np.random.default_rng(seed))
        engine = transformers_engine(path)
        tasks = tasks_of("hi", "what is it?", group_size=4)
        return play(
            chatty,
            tasks,
            engine,
            bounds=BOUNDS,
            renderer=ModelLetters(),
            caller=world,
            concurrency=concurrency,
            **options,
        )

    def tokens(trajectories):
        return [[row.response_ids.tolist() for row in item.rows] for item in trajectories]

    entries = Written()
    first = played(0, 8, entries=entries)
    assert tokens(played(1, 3)) == tokens(first)
    again = played(2, 5, records=records_of(entries[: len(entries) // 2]))
    assert tokens(again) == tokens(first)
    assert [content(item) for item in played(3, 8, records=records_of(entries))] == [content(item) for item in first]


def test_likely_tokens_come_with_the_turns_that_ask_and_again_from_a_journal(path):
    def played(**options):
        told = {}

        async def asks(task, policy, world):
            branches, number = policy.branches(), 3 * (task.member % 2)
            first = await branches.reply(task.messages, max_tokens=6, top_log_probs=number)
            said = [*task.messages, first.message.as_message(), {"role": "tool", "content": "o"}]
            told[task.trajectory] = first.sampled
            await branches.reply(said, max_tokens=4, top_log_probs=number)

        tasks = tasks_of("hi", "what is it?", group_size=2)
        result = play(asks, tasks, transformers_engine(path), bounds=BOUNDS, renderer=ModelLetters(), **options)
        assert [item.failed for item in result] == [None] * 4, result[0].message
        assert all(row.last_sampled.top_log_probs is None for item in result for row in item.rows)
        return told, result

    entries = Written()
    told, result = played(entries=entries)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    for item in result:
        first = told[item.task.trajectory]
        assert (first.top_log_probs is None) == (item.task.member == 0)
        if first.top_log_probs is not None:
            row, at = item.rows[0], len(item.rows[0].prompt) - 1
            with torch.no_grad():
                logits = model(torch.tensor(row.sequence())[None]).logits[0, at : at + len(first)]
            likely = torch.log_softmax(logits, -1).topk(3)
            np.testing.assert_allclose(first.top_log_probs.log_probs, likely.values, atol=1e-5)
            assert first.top_log_probs.tokens.tolist() == likely.indices.tolist()
    again, replayed = played(records=records_of(entries))
    assert all(item.is_replayed for item in replayed)
    for trajectory, first in told.items():
        one, other = first.top_log_probs, again[trajectory].top_log_probs
        assert (one is None) == (other is None)
        if one is not None:
            assert one.tokens.tolist() == other.tokens.tolist() and one.log_probs.tolist() == other.log_probs.tolist()


def test_turns_that_are_heard_while_they_are_decoded_are_those_that_are_not(path):
    def played(is_heard):
        lengths = list[int]()

        async def asks(task, policy, world):
            heard = list[list[int]]()
            hear = (lambda tokens: heard.append(tokens.tolist())) if is_heard and task.member else None
            turn = await policy.branches().reply(task.messages, hear=hear)
            whole = turn.sampled.tokens.tolist()
            assert all(whole[: len(part)] == part for part in heard)
            lengths.extend(map(len, heard))

        tasks = tasks_of("hi", "what is it?", group_size=3)
        result = play(asks, tasks, transformers_engine(path), bounds=BOUNDS, renderer=ModelLetters())
        assert [item.failed for item in result] == [None] * 6, result[0].message
        return [[row.response_ids.tolist() for row in item.rows] for item in result], lengths

    tokens, lengths = played(True)
    assert tokens == played(False)[0] and len({length for length in lengths if length}) > 1
