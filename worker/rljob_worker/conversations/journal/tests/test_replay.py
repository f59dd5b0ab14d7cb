"""A step that is repeated from its journal: what was recorded is fed, what was not is done once."""

from __future__ import annotations

import json
from contextlib import suppress

import numpy as np
import pytest

from rljob_worker.conversations.journal.records import Record, encoded, records_of
from rljob_worker.conversations.journal.replay import Journal
from rljob_worker.conversations.playing.tests.playing import (
    FunctionWorld,
    SteppingEngine,
    content,
    play,
    tasks_of,
)
from rljob_worker.conversations.playing.tests.test_loop import answer_of, counting, drawn, playful
from rljob_worker.conversations.trajectory import Sampled
from rljob_worker.conversations.world import SharedWorld
from rljob_worker.sandbox.targets import Answer, CallError


class Written(list):
    """Entries as lines, as a file has them."""

    def append(self, entry):
        super().append(json.dumps(entry).encode())

    def append_picture(self, digest, url):
        self.append({"picture": digest, "url": url})


PROMPTS = ("hi", "ho", "hu")


def original():
    entries, world = Written(), FunctionWorld(answer_of)
    played = play(playful, tasks_of(*PROMPTS, group_size=2), SteppingEngine(drawn), caller=world, entries=entries)
    return played, entries, world


@pytest.mark.parametrize("seed", range(10))
def test_a_play_that_was_killed_anywhere_ends_as_if_it_had_not_been(seed):
    played, entries, world = original()
    random = np.random.default_rng(seed)
    kept = entries[: random.integers(len(entries) + 1)]
    torn = [b'{"trajectory": 0, "attempt": 0, "tu'] * int(random.integers(2))
    engine, again = SteppingEngine(drawn, order=random), FunctionWorld(answer_of, delays=random)
    later = Written()
    records = records_of([*kept, *torn])
    replayed = play(playful, tasks_of(*PROMPTS, group_size=2), engine, caller=again, entries=later, records=records)
    assert [content(item) for item in replayed] == [content(item) for item in played]
    assert [item.call_seconds for item in replayed] == [item.call_seconds for item in played]
    # what was answered is not called again, and what was sampled is not sampled again
    num_answers = sum(b'"answer"' in line for line in kept)
    assert len(again.calls) == len(world.calls) - num_answers
    num_samples = sum(b'"sample"' in line for line in kept)
    assert sum(len(requests) for requests in engine.submitted) == sum(t.num_turns for t in played) - num_samples
    assert any(item.is_replayed for item in replayed) == bool(num_answers + num_samples)
    # a third attempt has all of it
    third = FunctionWorld(answer_of)
    records = records_of([*kept, *torn, *later])
    whole = play(playful, tasks_of(*PROMPTS, group_size=2), SteppingEngine(drawn), caller=third, records=records)
    assert [content(item) for item in whole] == [content(item) for item in played] and not third.calls


def test_keys_of_calls_are_those_of_the_first_attempt():
    _, entries, world = original()
    begun = [line for line in entries if b'"answer"' not in line]
    again = FunctionWorld(answer_of)
    tasks = tasks_of(*PROMPTS, group_size=2)
    play(playful, tasks, SteppingEngine(drawn), caller=again, records=records_of(begun))
    assert sorted(call[-1] for call in again.calls) == sorted(call[-1] for call in world.calls)
    assert len({call[-1] for call in again.calls}) == len(again.calls)


@pytest.mark.parametrize("change", ["another call", "a call less", "another prompt", "other weights"])
def test_what_does_not_replay_costs_its_trajectory_and_says_so(change, caplog):
    _, entries, _ = original()

    async def other(task, policy, world):
        if task.trajectory == 0 and change == "another prompt":
            await policy.chat([{"role": "user", "content": "HI"}])
        elif task.trajectory == 0 and change == "another call":
            await world.call("other", {})
        elif task.trajectory == 0 and change == "a call less":
            return
        await playful(task, policy, world)

    engine = SteppingEngine(drawn)
    engine.version += change == "other weights"
    again = FunctionWorld(answer_of)
    tasks = tasks_of(*PROMPTS, group_size=2)
    results = play(other, tasks, engine, caller=again, records=records_of(entries))
    failed = [item.failed for item in results]
    assert failed == ["replay"] * 6 if change == "other weights" else failed == ["replay"] + [None] * 5
    assert "failed (replay)" in caplog.text


def test_a_run_that_keeps_all_exceptions_does_not_keep_that_it_does_not_replay():
    _, entries, _ = original()

    async def stubborn(task, policy, world):
        with suppress(Exception):
            await world.call("other", {})

    results = play(stubborn, tasks_of("hi"), SteppingEngine(drawn), records=records_of(entries))
    assert results[0].failed == "replay"


def walking(moves):
    """An environment that adds up what it is given, for each session."""
    places = {}

    def step(session, target, method, arguments):
        places[session] = places.get(session, 0) + arguments["by"] * moves
        return places[session] if places[session] < 99 else Answer(None, CallError("Raised", "over the edge"), 0.25)

    return step


async def walk(task, policy, world):
    for by in (1, 2, 3):
        answer = await world.call("maze", {"by": by}, method="step")
        world.reward(answer.value)
        await policy.chat([{"role": "user", "content": str(answer.value)}])


MAZE = SharedWorld(environments=("maze",), stateful=frozenset({"maze"}))


def test_an_environment_is_brought_to_where_it_was_before_it_is_asked_anything_new():
    entries = Written()
    world = FunctionWorld(walking(1))
    (played,) = play(walk, tasks_of("hi"), SteppingEngine(counting), caller=world, entries=entries, shared=MAZE)
    assert played.environment_reward == 1 + 3 + 6
    # killed when the second answer was there, and the third call not made
    kept = entries[: next(at for at, line in enumerate(entries) if b'"value": 3' in line) + 1]
    again = FunctionWorld(walking(1))
    (result,) = play(
        walk, tasks_of("hi"), SteppingEngine(counting), caller=again, records=records_of(kept), shared=MAZE
    )
    assert content(result) == content(played)
    assert [call[3]["by"] for call in again.calls] == [1, 2, 3]
    # all was there: nothing is called
    none = FunctionWorld(walking(1))
    (result,) = play(
        walk, tasks_of("hi"), SteppingEngine(counting), caller=none, records=records_of(entries), shared=MAZE
    )
    assert content(result) == content(played) and not none.calls


def test_an_environment_that_answers_otherwise_costs_the_trajectory():
    entries = Written()
    tasks = tasks_of("hi")
    play(walk, tasks, SteppingEngine(counting), caller=FunctionWorld(walking(1)), entries=entries, shared=MAZE)
    kept = entries[: next(at for at, line in enumerate(entries) if b'"value": 3' in line) + 1]
    again = FunctionWorld(walking(2))
    (result,) = play(
        walk, tasks_of("hi"), SteppingEngine(counting), caller=again, records=records_of(kept), shared=MAZE
    )
    assert result.failed == "replay" and "maze answers call 1 otherwise" in result.message


def test_errors_are_answers_and_are_replayed_as_such():
    async def once(task, policy, world):
        answer = await world.call("tool", {"by": 100})
        assert answer.value is None and (answer.error.cause, answer.error.message) == ("Raised", "over the edge")
        await policy.chat()

    entries = Written()
    caller = FunctionWorld(walking(1))
    (first,) = play(once, tasks_of("hi"), SteppingEngine(counting), caller=caller, entries=entries)
    (again,) = play(once, tasks_of("hi"), SteppingEngine(counting), records=records_of(entries))
    assert content(again) == content(first) and (again.num_calls, again.num_call_errors) == (1, 1)
    assert caller.ended == ["step-1/0/0"]


def test_turns_of_branches_are_replayed_in_any_order():
    record = Record(samples={0: encoded(sampled_of(5), "one"), 1: encoded(sampled_of(6), "two")})
    journal = Journal(0, 0, record, None)
    assert [
        journal.sampled(turn, lambda of=of: of, 0).sampled.tokens.tolist() for turn, of in ((0, "two"), (1, "one"))
    ] == [
        [6],
        [5],
    ]
    journal.require_replayed()


def sampled_of(token):
    return Sampled(np.array([token]), np.zeros(1, np.float32), np.zeros(1, np.int64), 0)
