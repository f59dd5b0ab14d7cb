"""Conversations over an engine that says what a test wants: what is recorded, in any order of what ends first."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.conversations import world
from rljob_worker.conversations.playing import game, loop_watch
from rljob_worker.conversations.playing.loop import Conversations
from rljob_worker.conversations.playing.loop_watch import LoopBlocked
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
    text,
)
from rljob_worker.conversations.policy import Bounds
from rljob_worker.conversations.trajectory import turn_rewards
from rljob_worker.errors import BadData, InvalidJob
from rljob_worker.stages.stage import Alone


async def two_turns(task, policy, world):
    await policy.chat()
    await policy.chat([{"role": "user", "content": "more"}])


def counting(row_id, turn, before):
    return "abcdefgh"[turn % 8] * (1 + row_id % 3) + "~"


def test_what_the_policy_says_is_recorded_between_what_the_world_says():
    engine = SteppingEngine(counting)
    (one,) = play(two_turns, tasks_of("hi"), engine)
    (row,) = one.rows
    # the first turn samples `a~`, the world writes `][u:more][a:`, the second turn samples `b~`
    assert text(row.prompt) == "[u:hi][a:"
    assert text(row.response_ids) == "a~][u:more][a:b~"
    assert row.mask.tolist() == [1] * 2 + [0] * 12 + [1] * 2
    assert row.turn_ids.tolist() == [0] * 14 + [1] * 2
    assert row.log_probs[[0, 1, 2, 14]].tolist() == pytest.approx([-0.97, 0.0, 0.0, -0.98])
    assert row.versions(9).tolist() == [3] * 16
    assert [message["role"] for message in one.messages] == ["user", "assistant", "user", "assistant"]
    assert engine.prompts == {(0, 0): "[u:hi][a:", (0, 1): "[u:hi][a:a~][u:more][a:"}
    assert (one.num_turns, one.num_sampled, one.num_world_tokens, one.truncated, one.failed) == (2, 4, 12, False, None)


def test_groups_are_asked_for_together_and_share_their_prompt():
    engine = SteppingEngine(counting)
    trajectories = play(two_turns, tasks_of("hi", "ho", group_size=2), engine)
    first = engine.submitted[0]
    assert first.row_ids.tolist() == [0, 1, 2, 3] and first.prompt_of.tolist() == [0, 0, 1, 1]
    assert first.prompts.num_rows == 2
    assert [text(item.rows[0].response_ids)[:3] for item in trajectories] == ["a~]", "aa~", "aaa", "a~]"]


class WakingEngine(SteppingEngine):
    """Notes how many trajectories had begun when it was woken."""

    def __init__(self, begun):
        super().__init__(counting)
        self.begun, self.seen = begun, []

    def wake(self):
        self.seen.append(len(self.begun))
        super().wake()


def test_the_engine_begins_while_further_prompts_are_rendered_and_gets_groups_whole():
    begun = []

    async def run(task, policy, world):
        begun.append(task.trajectory)
        await policy.chat()

    engine = WakingEngine(begun)
    play(run, tasks_of(*["hi"] * 40, group_size=3), engine, concurrency=120)
    # 22 groups are 66 turns, the first whole groups that are 64; the next turn hands them over
    assert engine.seen[:2] == [67, 120]
    assert sum(len(requests.row_ids) for requests in engine.submitted) == 120


async def playful(task, policy, world):
    """Turns, calls at once and one after another, draws, rewards: as many as the task's own random numbers say."""
    await policy.chat()
    while not policy.is_over and task.random.random() < 0.7:
        answers = await asyncio.gather(*(world.call("count", {"n": n}) for n in range(int(task.random.integers(3)))))
        world.reward(0.1 * sum(answer.value for answer in answers))
        said = " ".join(str(answer.value) for answer in answers)
        message = await policy.chat([{"role": "tool", "content": said}])
        world.metric("letters", len(message.content))


def answer_of(session, target, method, arguments):
    return arguments["n"] + len(session) % 4


def drawn(row_id, turn, before):
    """As an engine draws: of its row, turn, and what is before."""
    random = np.random.default_rng([row_id, turn, len(before)])
    return "".join(random.choice(list("xyz"), random.integers(1, 9))) + ("~" if random.random() < 0.8 else "")


@pytest.mark.parametrize("seed", range(12))
def test_what_ends_first_changes_nothing(seed):
    tasks = ("hi", "ho", "hu", "he", "ha")
    straight = play(playful, tasks_of(*tasks, group_size=3), SteppingEngine(drawn), caller=FunctionWorld(answer_of))
    random = np.random.default_rng(seed)
    engine, world = SteppingEngine(drawn, order=random), FunctionWorld(answer_of, delays=np.random.default_rng(seed))
    concurrency = int(random.integers(1, 20))
    other = play(playful, tasks_of(*tasks, group_size=3), engine, caller=world, concurrency=concurrency)
    assert [content(item) for item in other] == [content(item) for item in straight]
    assert not engine.held and len({item.num_turns for item in other}) > 1


def test_no_more_are_played_at_once_than_the_job_says():
    alive, most = 0, 0

    async def counted(task, policy, world):
        nonlocal alive, most
        alive += 1
        most = max(most, alive)
        await policy.chat()
        alive -= 1

    play(counted, tasks_of("hi", group_size=7), SteppingEngine(counting), concurrency=3)
    assert most == 3


def test_a_turn_that_is_cut_off_ends_the_trajectory_and_marks_it():
    async def endless(task, policy, world):
        while True:
            await policy.chat([{"role": "user", "content": "m"}] if policy.messages else None)

    # 14 tokens: `aaaa~` 5, `][u:m][a:` 9, none left for the second turn, which is then not asked for
    bounds = Bounds(turns=8, rows=1, response_tokens=14, row_tokens=250)
    (one,) = play(endless, tasks_of("hi"), SteppingEngine(lambda *_: "aaaa~"), bounds=bounds)
    assert (one.truncated, one.failed, text(one.rows[0].response_ids)) == (True, None, "aaaa~")
    # of 16 the second turn has 2, and is cut off
    bounds = Bounds(turns=8, rows=1, response_tokens=16, row_tokens=250)
    (one,) = play(endless, tasks_of("hi"), SteppingEngine(lambda *_: "aaaa~"), bounds=bounds)
    assert (one.truncated, text(one.rows[0].response_ids)) == (True, "aaaa~][u:m][a:aa")
    # the prompt `[u:hi][a:` has 9 tokens, and rows 12 in all
    bounds = Bounds(turns=8, rows=1, response_tokens=16, row_tokens=12)
    (one,) = play(endless, tasks_of("hi"), SteppingEngine(lambda *_: "aaaa~"), bounds=bounds)
    assert (one.truncated, text(one.rows[0].response_ids)) == (True, "aaa")
    bounds = Bounds(turns=8, rows=1, response_tokens=16, row_tokens=9)
    (one,) = play(endless, tasks_of("hi"), SteppingEngine(lambda *_: "aaaa~"), bounds=bounds)
    assert (one.truncated, one.rows) == (True, [])
    bounds = Bounds(turns=3, rows=1, response_tokens=100, row_tokens=250)
    (one,) = play(endless, tasks_of("hi"), SteppingEngine(lambda *_: "aaaa~"), bounds=bounds)
    assert (one.truncated, one.num_turns) == (True, 3)


def test_a_turn_that_its_caller_cut_off_goes_on_with_its_end_written_by_the_world():
    async def short(task, policy, world):
        message = await policy.chat(max_tokens=2)
        assert (message.finish_reason, message.content, message.tokens.tolist()) == ("Length", "aa", [97, 97])
        assert (await policy.chat([{"role": "user", "content": "m"}])).finish_reason == "Stop"

    (one,) = play(short, tasks_of("hi"), SteppingEngine(lambda *_: "aaaa~"))
    assert (one.truncated, one.failed) == (False, None)
    assert text(one.rows[0].response_ids) == "aa~][u:m][a:aaaa~"
    assert one.rows[0].mask.tolist() == [1, 1] + [0] * 10 + [1] * 5


def test_a_template_that_rewrites_history_opens_a_new_row():
    bounds = Bounds(turns=8, rows=2, response_tokens=50, row_tokens=250)

    async def three(task, policy, world):
        for _ in range(3):
            await policy.chat([{"role": "user", "content": "m"}])

    engine = SteppingEngine(counting)
    (one,) = play(three, tasks_of("hi"), engine, bounds=bounds, renderer=LetterRenderer(keeps=False))
    # the third turn would need a third row
    assert [text(row.prompt) for row in one.rows] == ["[u:m][a:", "[u:m][u:m][a:"]
    assert [text(row.response_ids) for row in one.rows] == ["a~", "bb~"] and one.truncated
    assert [row.turn_ids.tolist() for row in one.rows] == [[0, 0], [1, 1, 1]]
    assert sorted(engine.prompts) == [(0, 0), (1, 1)], "rows of a trajectory have numbers of their own"


def test_tools_that_change_open_a_new_row():
    async def changes(task, policy, world):
        await policy.chat(tools=["add"])
        await policy.chat([{"role": "user", "content": "m"}])
        await policy.chat([{"role": "user", "content": "n"}], tools=[])

    bounds = Bounds(turns=8, rows=2, response_tokens=90, row_tokens=250)
    (one,) = play(changes, tasks_of("hi"), SteppingEngine(counting), bounds=bounds)
    assert [text(row.prompt) for row in one.rows] == ["<add>[u:hi][a:", "[u:hi][a:a][u:m][a:b][u:n][a:"]


def test_tokens_go_in_and_come_out_without_a_template():
    async def tokens(task, policy, world):
        first = await policy.complete()
        assert text(first) == "a~"
        assert text(await policy.complete([33, 34], max_tokens=1)) == "b"

    (one,) = play(tokens, tasks_of("hi"), SteppingEngine(counting))
    (row,) = one.rows
    assert (text(row.prompt), text(row.response_ids)) == ("hi", 'a~!"b')
    assert row.mask.tolist() == [1, 1, 0, 0, 1] and not one.truncated


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([33, 128], "token 128 at place 1: the model has tokens from 0 to 127"),
        ([-1], "token -1 at place 0"),
        ([33.5], "whole numbers, not float64"),
        ([[33, 34]], r"whole numbers, not int64 of shape (1, 2)"),
    ],
)
def test_tokens_that_the_model_has_not_cost_their_own_trajectory(tokens, message):
    async def adds(task, policy, world):
        await policy.complete()
        await policy.complete(tokens if task.member == 0 else [33])

    class Strict(SteppingEngine):
        """Refuses what engines refuse."""

        def submit(self, requests):
            assert ((requests.prompts.values >= 0) & (requests.prompts.values < 128)).all()
            super().submit(requests)

    lost, other = play(adds, tasks_of("hi", group_size=2), Strict(counting), bounds=replace(BOUNDS, num_tokens=128))
    assert lost.failed == "error" and message in lost.message
    assert other.failed is None and text(other.rows[0].response_ids) == "aa~!bb~"


@pytest.mark.parametrize("begins", [True, False])
def test_pictures_that_the_model_does_not_see_cost_their_own_trajectory(begins):
    async def shows(task, policy, world):
        if not begins:
            await policy.complete()
        await policy.complete([33], pictures=[b"png"] if task.member == 0 else [])

    engine = SteppingEngine(counting)
    lost, other = play(shows, tasks_of("hi", group_size=2), engine, bounds=replace(BOUNDS, sees=False))
    assert lost.failed == "error" and "does not see; leave them out" in lost.message
    assert other.failed is None and all(requests.pictures is None for requests in engine.submitted)


def test_a_decision_with_pictures_that_the_model_does_not_see_costs_its_own_trajectory():
    async def acts(task, policy, world):
        await policy.decide(np.array([33]), [b"png"] if task.member == 0 else [], num_tokens=3)

    engine = SteppingEngine(lambda *_: "abcdefgh")
    lost, other = play(acts, tasks_of("hi", group_size=2), engine, bounds=replace(BOUNDS, sees=False))
    assert lost.failed == "error" and "does not see" in lost.message and other.failed is None


def test_what_a_run_raises_costs_its_own_trajectory(caplog):
    async def some(task, policy, world):
        if task.member == 1:
            raise ZeroDivisionError("in the middle")
        if task.member == 2:
            world.fail("Lost game!", "gave up")
        if task.member == 3:
            try:
                world.reward(float("nan"))
            except Exception:
                pytest.fail("what ends a trajectory is no Exception")
        world.show("seen", {4: 4.5, 5: float("nan"), 6: object()}.get(task.member))  # nobody reads of 6
        await policy.chat()

    tasks = tasks_of("hi", group_size=7)
    results = play(some, tasks, SteppingEngine(counting), shown=frozenset(range(6)))
    assert [item.failed for item in results] == [None, "error", "lost_game", "reward", None, "show", None]
    assert [results[at].shown for at in (4, 6)] == [{"seen": 4.5}, {}]
    assert "trajectory 1 failed (error): ZeroDivisionError: in the middle" in caplog.text
    assert text(results[4].rows[0].response_ids) == "aa~"


class Panic(BaseException):
    """As libraries in Rust raise it."""


async def panics(task, policy, world):
    raise Panic("index out of bounds")


async def awaits_what_it_cancelled(task, policy, world):
    waiting = asyncio.ensure_future(asyncio.sleep(1000))
    waiting.cancel()
    await waiting


async def cancels_itself(task, policy, world):
    asyncio.current_task().cancel()
    await policy.chat()


async def fails_in_a_group(task, policy, world):
    async with asyncio.TaskGroup() as outer, asyncio.TaskGroup() as inner:
        inner.create_task(asyncio.sleep(1000))
        outer.create_task(asyncio.sleep(1000))
        world.fail("lost", "gave up")


async def asks_for_half_a_token(task, policy, world):
    await policy.chat(max_tokens=2.5)


async def asks_for_too_many_likely_tokens(task, policy, world):
    await policy.branches().reply(task.messages, top_log_probs=21)


async def asks_for_likely_tokens_by_a_word(task, policy, world):
    await policy.branches().generate(np.array([33]), top_log_probs="5")


async def rewards_no_turn(task, policy, world):
    await policy.chat()
    world.reward(1.0, turn=-50)


@pytest.mark.parametrize(
    ("run", "cause", "message"),
    [
        (panics, "error", "Panic: index out of bounds"),
        (awaits_what_it_cancelled, "error", "CancelledError"),
        (cancels_itself, "error", "CancelledError"),
        (fails_in_a_group, "lost", "gave up"),
        (asks_for_half_a_token, "error", "max_tokens is 2.5; a turn has one token at least"),
        (asks_for_too_many_likely_tokens, "error", "top_log_probs is 21, not a whole number from 0 to 20"),
        (asks_for_likely_tokens_by_a_word, "error", "top_log_probs is '5', not a whole number"),
        (rewards_no_turn, "reward", "a reward is of the turn -50"),
    ],
)
def test_no_mistake_of_a_run_ends_the_play(run, cause, message):
    async def some(task, policy, world):
        await (run if task.member == 0 else two_turns)(task, policy, world)

    engine = SteppingEngine(counting)
    lost, other = play(some, tasks_of("hi", group_size=2), engine)
    assert lost.failed == cause and message in lost.message
    assert other.failed is None and other.num_turns == 2
    assert all(sampling.top_log_probs == 0 for requests in engine.submitted for sampling in requests.samplings)


def test_likely_tokens_that_the_engine_does_not_give_cost_their_own_trajectory():
    async def asks(task, policy, world):
        await policy.branches().reply(task.messages, top_log_probs=3 if task.member == 0 else 0)

    bounds = replace(BOUNDS, most_top_log_probs=0)
    lost, other = play(asks, tasks_of("hi", group_size=2), SteppingEngine(counting), bounds=bounds)
    assert lost.failed == "error" and "top_log_probs is 3, and the engine gives none" in lost.message
    assert other.failed is None


def test_a_conversation_is_over_also_for_tasks_of_a_group():
    async def grouped(task, policy, world):
        async with asyncio.TaskGroup() as group:
            group.create_task(without_end(policy))

    async def without_end(policy):
        while True:
            await policy.chat([{"role": "user", "content": "m"}])

    (one,) = play(grouped, tasks_of("hi"), SteppingEngine(counting), bounds=replace(BOUNDS, turns=3))
    assert (one.failed, one.truncated, one.num_turns) == (None, True, 3)


def test_a_group_with_too_few_left_is_drawn_again_once():
    attempts = []

    async def unlucky(task, policy, world):
        await policy.chat()
        attempts.append((task.group, task.member, task.attempt))
        if task.group == 0 and task.member > 0 and task.attempt == 0:
            world.fail("lost")
        if task.group == 1 and task.member > 0:
            world.fail("lost")

    over = []
    engine = SteppingEngine(counting)
    results = play(
        unlucky,
        tasks_of("hi", "ho", "hu", group_size=3),
        engine,
        least_left=2,
        when_over=lambda group: over.append([item.task.trajectory for item in group]),
    )
    assert sorted(attempts) == [
        *((0, member, attempt) for member in range(3) for attempt in range(2)),
        *((1, member, attempt) for member in range(3) for attempt in range(2)),
        *((2, member, 0) for member in range(3)),
    ]
    assert [item.failed for item in results] == [None] * 3 + [None, "lost", "lost"] + [None] * 3
    assert sorted(over) == [[0, 1, 2], [3, 4, 5], [6, 7, 8]], "each group once, when nothing of it goes on"
    # the second attempt has draws of its own
    assert {turn for row, turn in engine.prompts if row < 3} == {0, 1 << 24}


def test_rewards_belong_to_the_last_tokens_of_their_turns():
    async def rewarded(task, policy, world):
        await policy.chat()
        world.reward(0.5, turn=0)
        await policy.chat([{"role": "user", "content": "m"}])
        world.reward(2.0)
        world.reward(0.25, turn=1)
        world.reward(0.125, turn=7)

    (one,) = play(rewarded, tasks_of("hi"), SteppingEngine(counting))
    # `a~` `][u:m][a:` `b~`: turn 0 ends at 1, turn 1 at 12
    (values,) = turn_rewards(one)
    assert {at: values[at] for at in np.flatnonzero(values)} == {1: 0.5, 12: 2.375}
    assert one.environment_reward == 2.875


def test_random_numbers_are_of_the_trajectory_and_seeds_of_the_group():
    drawn, seeds = {}, {}

    async def draw(task, policy, world):
        drawn[task.trajectory] = task.random.random()
        seeds.setdefault(task.group, set()).add(task.seed)
        await policy.chat()

    for _ in range(2):
        play(draw, tasks_of("hi", "ho", group_size=2), SteppingEngine(counting))
        before = dict(drawn)
    assert drawn == before and len(set(drawn.values())) == 4
    assert all(len(of_group) == 1 for of_group in seeds.values()) and seeds[0] != seeds[1]


def test_an_error_of_the_engine_ends_the_play_and_leaves_nothing_behind():
    engine = SteppingEngine(counting)
    engine.fails_at = 2
    with pytest.raises(BadData, match="logits"):
        play(two_turns, tasks_of("hi", group_size=4), engine)
    assert engine.load.running == 0 and "conversations" not in [thread.name for thread in threading.enumerate()]


def test_an_error_of_the_job_ends_the_play():
    async def refused(task, policy, world):
        raise InvalidJob("models: no chat template")

    with pytest.raises(InvalidJob, match="no chat template"):
        play(refused, tasks_of("hi", group_size=4), SteppingEngine(counting))


def test_a_second_turn_while_one_is_awaited_is_refused():
    async def twice(task, policy, world):
        await asyncio.gather(policy.chat(), policy.chat())

    (one,) = play(twice, tasks_of("hi"), SteppingEngine(counting), bounds=BOUNDS)
    assert one.failed == "error" and "another one is awaited" in one.message


def test_a_turn_that_nobody_waits_for_any_more_is_aborted_and_may_be_asked_again():
    async def impatient(task, policy, world):
        branches = policy.branches()
        for seconds in (0.0, 0.02):
            call = asyncio.ensure_future(branches.reply(task.messages))
            await asyncio.sleep(seconds)
            call.cancel()
            await asyncio.wait({call})
        await branches.reply(task.messages)

    class Held(SteppingEngine):
        """Decodes nothing until a request was aborted."""

        def advance(self, most_steps=None):
            if self.aborted:
                return super().advance(most_steps)
            self._woken.wait()
            self._woken.clear()
            return self._table([])

    engine = Held(counting)
    (one,) = play(impatient, tasks_of("hi"), engine)
    assert engine.aborted == [0] and one.failed is None
    assert [text(row.response_ids) for row in one.rows] == ["a~"]


def test_a_run_function_that_holds_up_the_loop_is_named_and_ends_the_job(monkeypatch, caplog):
    monkeypatch.setattr(loop_watch, "NAMED_SECONDS", 0.2)
    monkeypatch.setattr(game, "LOOK_SECONDS", 0.05)
    released = threading.Event()

    async def run(task, policy, world):
        if task.trajectory == 1:
            released.wait(TEST_TIMEOUT_SECONDS)

    engine, shown = SteppingEngine(lambda *_: "~"), {"run_name": "mine:run", "most_blocked_seconds": 0.6}
    conversations = Conversations(engine, run, LetterRenderer(), BOUNDS, **shown)
    thread = None
    try:
        with pytest.raises(LoopBlocked, match="run: mine:run has held up .* in trajectory 1, at "):
            conversations.play(Play(tasks_of("a", "b"), SAMPLING, "step-1"), Alone())
        (thread,) = [item for item in threading.enumerate() if item.name == "conversations"]
        conversations.close()
    finally:
        released.set()
        if thread is not None:
            thread.join()
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("mine:run has held up the event loop for 0 s in trajectory 1, at ")
    assert "in run, and all trajectories of this worker with it; wait with `await`" in line


def test_a_run_function_that_waits_for_what_never_comes_costs_its_trajectory():
    async def run(task, policy, world):
        await policy.chat()
        try:
            while task.member == 1:
                await asyncio.sleep(0.001)
            if task.member == 2:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)  # and goes on as if nothing had been
        await world.call("echo", {})

    conversations = Conversations(
        SteppingEngine(lambda *_: "~"), run, LetterRenderer(), BOUNDS, caller=SlowWorld(0.3), most_idle_seconds=0.1
    )
    try:
        played = conversations.play(Play(tasks_of("a", group_size=3), SAMPLING, "step-1"), Alone())
    finally:
        conversations.close()
    # a call has as long as it takes
    assert [item.failed for item in played] == [None, "idle", "idle"]
    assert all(
        f"waited for neither the policy nor the world for 0.05 s, at {__file__}:" in item.message for item in played[1:]
    )


def test_calls_without_end_cost_their_trajectory(monkeypatch):
    monkeypatch.setattr(world, "MOST_CALLS", 20)

    async def run(task, policy, world):
        for turn in range(3):
            await policy.chat()
            for _ in range(20 + (turn == 1 and task.member)):
                await world.call("echo", {})

    played = play(run, tasks_of("a", group_size=2), SteppingEngine(lambda *_: "~"), caller=FunctionWorld(lambda *_: ""))
    assert [(item.failed, item.num_turns) for item in played] == [(None, 3), ("calls", 2)]
    assert played[1].message == "more than 20 calls without a turn of the policy between them"


class SlowWorld(FunctionWorld):
    """Answers after some seconds."""

    def __init__(self, seconds):
        super().__init__(lambda *_: "")
        self.seconds = seconds

    async def call(self, *arguments, key=""):
        await asyncio.sleep(self.seconds)
        return await super().call(*arguments)


def test_how_long_the_loop_was_held_up_is_known_after_a_play(monkeypatch):
    monkeypatch.setattr(loop_watch, "BEAT_SECONDS", 0.02)

    async def run(task, policy, world):
        await asyncio.sleep(0)
        if task.trajectory == 1:
            time.sleep(0.3)
            await asyncio.sleep(0.05)  # several beats

    conversations = Conversations(SteppingEngine(lambda *_: "~"), run, LetterRenderer(), BOUNDS)
    try:
        conversations.play(Play(tasks_of("a", "b"), SAMPLING, "step-1"), Alone())
        assert conversations.longest_blocked_seconds >= 0.25
    finally:
        conversations.close()
