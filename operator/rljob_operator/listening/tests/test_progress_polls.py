"""Who is asked when, on a clock that jumps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from rljob_operator.guard import Guard
from rljob_operator.listening.progress import ProgressPolls
from rljob_operator.states.situation.facts import ProgressAnswer, UnreachableLead
from rljob_operator.tests.virtual_time import now, run
from rljob_operator.vocabulary.key import Key

KEY = Key("team", "small")
STEP = ProgressAnswer(step=1)
SILENCE = UnreachableLead("no answer")


class Pods:
    """What pods answer, and when each was asked."""

    def __init__(self, answer: Callable[[str], ProgressAnswer | UnreachableLead] = lambda address: STEP) -> None:
        self.answer = answer
        self.asked: list[tuple[str, float]] = []
        self.announced: list[tuple[Key, float]] = []
        self.num_at_once = self.most_at_once = 0

    async def read(self, address: str) -> ProgressAnswer | UnreachableLead:
        self.asked.append((address, now()))
        self.num_at_once += 1
        self.most_at_once = max(self.most_at_once, self.num_at_once)
        answer = self.answer(address)
        await asyncio.sleep(2.0 if isinstance(answer, UnreachableLead) else 0.0)
        self.num_at_once -= 1
        return answer

    def tell(self, key: Key) -> None:
        self.announced.append((key, now()))

    @property
    def times(self) -> list[float]:
        return [time for _, time in self.asked]


def watch(pods: Pods, scene: Callable[[ProgressPolls], Coroutine[Any, Any, None]], **settings: Any) -> None:
    async def whole() -> None:
        polls = ProgressPolls(pods.read, pods.tell, **settings)
        running = asyncio.create_task(polls.run())
        await scene(polls)
        running.cancel()

    run(whole())


def test_a_pod_is_asked_at_once_and_then_at_every_interval() -> None:
    async def scene(polls: ProgressPolls) -> None:
        assert polls.follow(KEY, "a") is None
        await asyncio.sleep(25)
        assert polls.follow(KEY, "a") == STEP and polls.follow(KEY, "a") is None

    pods = Pods()
    watch(pods, scene)
    assert pods.times == [0.0, 10.0, 20.0] and [key for key, _ in pods.announced] == [KEY] * 3


def test_silence_is_reported_when_it_lasts_and_then_polled_less_often() -> None:
    async def scene(polls: ProgressPolls) -> None:
        polls.follow(KEY, "a")
        await asyncio.sleep(30)
        assert polls.follow(KEY, "a") == SILENCE
        await asyncio.sleep(59)

    pods = Pods(lambda address: SILENCE)
    watch(pods, scene)
    # 2 s for each answer that does not come, 10 s between them, 30 s from the third on
    assert pods.times == [0.0, 12.0, 24.0, 56.0, 88.0] and [time for _, time in pods.announced] == [26.0, 58.0]


def test_a_job_that_is_left_is_asked_no_more() -> None:
    async def scene(polls: ProgressPolls) -> None:
        polls.follow(KEY, "a")
        await asyncio.sleep(5)
        polls.leave(KEY)
        await asyncio.sleep(50)
        assert pods.times == [0.0]
        assert polls.follow(KEY, "a") is None, "what was answered before is not of now"

    pods = Pods()
    watch(pods, scene)


def test_another_attempt_has_another_address() -> None:
    async def scene(polls: ProgressPolls) -> None:
        polls.follow(KEY, "a")
        await asyncio.sleep(1)
        assert polls.follow(KEY, "b") is None, "the answer was of the pod before"
        await asyncio.sleep(1)
        assert polls.follow(KEY, "b") == STEP

    pods = Pods()
    watch(pods, scene)
    assert [address for address, _ in pods.asked] == ["a", "b"]


def test_an_answer_that_comes_after_the_job_was_left_is_dropped() -> None:
    async def scene(polls: ProgressPolls) -> None:
        polls.follow(KEY, "a")
        await asyncio.sleep(1)
        polls.leave(KEY)
        await asyncio.sleep(100)

    pods = Pods(lambda address: SILENCE)
    watch(pods, scene, unanswered_polls=1)
    assert pods.announced == []


def test_only_so_many_are_asked_at_once_and_those_that_answer_get_their_turn() -> None:
    """300 that do not answer take 2 s each: 32 at once are 16 in a second, so one that answers waits for 19 s."""

    async def scene(polls: ProgressPolls) -> None:
        for number in range(300):
            polls.follow(Key("team", f"silent-{number}"), "silent")
        polls.follow(KEY, "alive")
        await asyncio.sleep(21)
        assert polls.follow(KEY, "alive") == STEP

    pods = Pods(lambda address: STEP if address == "alive" else SILENCE)
    watch(pods, scene)
    assert pods.most_at_once == 32


def test_a_pod_over_which_the_reader_fails_costs_the_others_nothing() -> None:
    """It counts as one that does not answer: asked at 0, 10 and 20 s, then every 30 s."""

    def answer(address: str) -> ProgressAnswer:
        if address == "hostile":
            raise RecursionError("too deep")
        return STEP

    async def scene(polls: ProgressPolls) -> None:
        polls.follow(KEY, "hostile")
        for number in range(40):
            polls.follow(Key("team", f"good-{number}"), "good")
        await asyncio.sleep(79)
        hostile = polls.follow(KEY, "hostile")
        assert isinstance(hostile, UnreachableLead) and "could not be read" in hostile.reason
        assert polls.follow(Key("team", "good-39"), "good") == STEP

    counted: list[str] = []
    pods = Pods(answer)
    watch(pods, scene, guard=Guard(counted.append), concurrency=2)
    assert [time for address, time in pods.asked if address == "hostile"] == [0.0, 10.0, 20.0, 50.0]
    assert counted == ["progress"] * 4 and pods.times.count(70.0) == 40


def test_a_job_whose_answer_cannot_be_handed_on_is_asked_again() -> None:
    async def scene(polls: ProgressPolls) -> None:
        polls.follow(KEY, "a")
        await asyncio.sleep(25)

    class Deaf(Pods):
        def tell(self, key: Key) -> None:
            raise KeyError(key)

    pods = Deaf()
    watch(pods, scene)
    assert pods.times == [0.0, 10.0, 20.0]
