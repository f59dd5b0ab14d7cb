"""The work queue: once per key, one worker per key, back-off, graceful stop."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest

from rljob_operator.cluster.errors import Unavailable
from rljob_operator.cluster.kinds import POD
from rljob_operator.listening.queue import WorkQueue
from rljob_operator.tests.virtual_time import now, run
from rljob_operator.vocabulary.backoff import Backoff
from rljob_operator.vocabulary.key import Key

A, B, C = Key("default", "a"), Key("default", "b"), Key("default", "c")


class Diary:
    """A reconcile that writes down when it looked at what."""

    def __init__(self, duration_seconds: float = 0.0, answers: tuple[object, ...] = ()) -> None:
        self.entries: list[tuple[float, Key]] = []
        self.num_at_once = 0
        self.most_at_once = 0
        self._duration_seconds = duration_seconds
        self._answers = list(answers)

    async def reconcile(self, key: Key) -> float | None:
        self.entries.append((round(now(), 3), key))
        self.num_at_once += 1
        self.most_at_once = max(self.most_at_once, self.num_at_once)
        await asyncio.sleep(self._duration_seconds)
        self.num_at_once -= 1
        answer = self._answers.pop(0) if self._answers else None
        if isinstance(answer, Exception):
            raise answer
        assert answer is None or isinstance(answer, float)
        return answer


class Results:
    def __init__(self) -> None:
        self.seen: list[str] = []
        self.seconds: list[float] = []

    def reconciled(self, result: str, seconds: float) -> None:
        self.seen.append(result)
        self.seconds.append(seconds)


def play(
    queue_of: Callable[[], WorkQueue], *, until: float, script: Callable[[WorkQueue], Awaitable[None]] | None = None
) -> None:
    async def scene() -> None:
        queue = queue_of()
        work = asyncio.create_task(queue.run())
        if script is not None:
            await script(queue)
        await asyncio.sleep(until - now())
        queue.stop()
        await work

    run(scene())


def adding(*keys: Key) -> Callable[[WorkQueue], Awaitable[None]]:
    async def script(queue: WorkQueue) -> None:
        for key in keys:
            queue.add(key)

    return script


def test_a_key_added_often_while_it_waits_is_looked_at_once() -> None:
    diary = Diary()
    play(lambda: WorkQueue(diary.reconcile), until=1, script=adding(A, A, B, A, B))
    assert diary.entries == [(0, A), (0, B)]


def test_a_key_added_while_it_is_looked_at_is_looked_at_again_and_never_twice_at_once() -> None:
    diary = Diary(duration_seconds=1)

    async def script(queue: WorkQueue) -> None:
        queue.add(A)
        await asyncio.sleep(0.5)
        queue.add(A)
        queue.add(A)

    play(lambda: WorkQueue(diary.reconcile, num_workers=3), until=5, script=script)
    assert diary.entries == [(0, A), (1, A)]
    assert diary.most_at_once == 1


def test_as_many_keys_at_once_as_there_are_workers() -> None:
    diary = Diary(duration_seconds=1)
    play(lambda: WorkQueue(diary.reconcile, num_workers=2), until=5, script=adding(A, B, C))
    assert diary.entries == [(0, A), (0, B), (1, C)]
    assert diary.most_at_once == 2


def test_a_reconcile_says_when_to_look_again() -> None:
    diary = Diary(answers=(10.0, 2.5))
    play(lambda: WorkQueue(diary.reconcile), until=60, script=adding(A))
    assert diary.entries == [(0, A), (10, A), (12.5, A)]


def test_of_two_times_to_look_again_the_earlier_one_counts() -> None:
    diary = Diary()

    async def script(queue: WorkQueue) -> None:
        queue.add_after(A, 10)
        queue.add_after(A, 3)
        queue.add_after(A, 20)

    play(lambda: WorkQueue(diary.reconcile), until=60, script=script)
    assert diary.entries == [(3, A)]


def test_a_look_before_the_appointed_time_takes_its_place() -> None:
    diary = Diary()

    async def script(queue: WorkQueue) -> None:
        queue.add_after(A, 10)
        await asyncio.sleep(4)
        queue.add(A)

    play(lambda: WorkQueue(diary.reconcile), until=60, script=script)
    assert diary.entries == [(4, A)]


def test_failures_are_repeated_after_growing_pauses_and_success_forgets_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refusal = Unavailable("get", POD, "default", "HTTP status 503")
    diary = Diary(answers=(refusal, refusal, refusal, 1.0, refusal))
    results = Results()
    play(
        lambda: WorkQueue(diary.reconcile, backoff=Backoff(1, 3), observer=results, chance=lambda: 0.0),
        until=60,
        script=adding(A),
    )
    # pauses 1, 2, 3 (4, but 3 is the longest); then as asked 1; then 1 again, for the failures before are forgotten
    assert [when for when, _ in diary.entries] == [0, 1, 3, 6, 7, 8]
    assert results.seen == ["Error", "Error", "Error", "Ok", "Error", "Ok"]
    assert "cannot get pods in namespace default: HTTP status 503; again in 1.0 s" in caplog.text
    assert "Traceback" not in caplog.text


def test_a_crash_is_logged_with_its_traceback_and_costs_other_jobs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    diary = Diary(answers=(KeyError("spec"),))
    results = Results()
    play(
        lambda: WorkQueue(diary.reconcile, num_workers=1, backoff=Backoff(1, 3), observer=results, chance=lambda: 0),
        until=60,
        script=adding(A, B),
    )
    assert diary.entries == [(0, A), (0, B), (1, A)]
    assert results.seen == ["Crash", "Ok", "Ok"]
    assert "KeyError: 'spec'" in caplog.text and "Traceback" in caplog.text
    assert "the reconcile failed; again in 1.0 s" in caplog.text


def test_age_is_that_of_the_oldest_key_also_while_it_is_looked_at() -> None:
    diary = Diary(duration_seconds=100)
    ages: list[tuple[int, float]] = []

    async def script(queue: WorkQueue) -> None:
        assert (queue.depth, queue.oldest_seconds) == (0, 0)
        queue.add(A)
        await asyncio.sleep(7)
        queue.add(B)
        await asyncio.sleep(2)
        ages.append((queue.depth, queue.oldest_seconds))

    play(lambda: WorkQueue(diary.reconcile, num_workers=1), until=300, script=script)
    assert ages == [(1, 9)]


def test_stop_ends_what_is_under_way_and_begins_nothing() -> None:
    diary = Diary(duration_seconds=5, answers=(1.0,))
    ended_at: list[float] = []

    async def scene() -> None:
        queue = WorkQueue(diary.reconcile, num_workers=1)
        work = asyncio.create_task(queue.run())
        queue.add(A)
        queue.add(B)
        queue.add_after(C, 2)
        await asyncio.sleep(1)
        queue.stop()
        await work
        ended_at.append(now())
        await asyncio.sleep(60)

    run(scene())
    assert diary.entries == [(0, A)]
    assert ended_at == [5]


def test_log_lines_of_a_reconcile_name_its_job(caplog: pytest.LogCaptureFixture) -> None:
    from rljob_operator.reporting.logs import TextFormatter

    lines: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(TextFormatter().format(record))

    log = logging.getLogger("rljob_operator.tests")
    handler = Handler()
    log.addHandler(handler)

    async def reconcile(key: Key) -> None:
        log.warning("looking")

    try:
        play(lambda: WorkQueue(reconcile), until=1, script=adding(A))
    finally:
        log.removeHandler(handler)
    assert [line.partition(" ")[2] for line in lines] == ["WARNING default/a: looking"]


def test_what_is_patient_is_looked_at_when_nothing_else_waits() -> None:
    diary = Diary(duration_seconds=1.0)

    async def script(queue: WorkQueue) -> None:
        queue.add(A, is_patient=True)
        queue.add(B, is_patient=True)
        queue.add(C)
        queue.add(B)  # no longer
        queue.add(C, is_patient=True)  # it is urgent already
        assert queue.depth == 3

    play(lambda: WorkQueue(diary.reconcile, 1), until=10, script=script)
    assert [key for _, key in diary.entries] == [C, B, A]


def test_what_can_wait_takes_few_of_the_workers() -> None:
    diary = Diary(duration_seconds=1.0)
    keys = [Key("default", str(number)) for number in range(5)]

    async def script(queue: WorkQueue) -> None:
        for key in keys:
            queue.add(key, is_patient=True)

    play(lambda: WorkQueue(diary.reconcile, 10), until=10, script=script)
    assert diary.entries == [(0, keys[0]), (0, keys[1]), (1, keys[2]), (1, keys[3]), (2, keys[4])]


def test_calm_is_when_only_what_can_wait_is_left() -> None:
    diary, calm = Diary(duration_seconds=1.0), list[float]()

    async def script(queue: WorkQueue) -> None:
        await queue.until_calm()
        calm.append(now())
        queue.add(A)
        for name in "defg":
            queue.add(Key("default", name), is_patient=True)
        await asyncio.sleep(0.5)
        queue.add(B)
        await queue.until_calm()
        calm.append(now())

    play(lambda: WorkQueue(diary.reconcile, 10), until=10, script=script)
    assert calm == [0, 1.5]


def test_ten_jobs_are_looked_at_at_once_where_nobody_says_how_many() -> None:
    diary = Diary(duration_seconds=1.0)
    play(lambda: WorkQueue(diary.reconcile), until=10, script=adding(*(Key("default", str(n)) for n in range(11))))
    assert diary.most_at_once == 10 and [when for when, _ in diary.entries] == [0] * 10 + [1]


def test_the_observer_is_notified_how_long_a_reconcile_took() -> None:
    results = Results()

    async def script(queue: WorkQueue) -> None:
        await asyncio.sleep(4)
        queue.add(A)

    play(lambda: WorkQueue(Diary(duration_seconds=2.5).reconcile, observer=results), until=10, script=script)
    assert (results.seen, results.seconds) == (["Ok"], [2.5])


def test_what_is_patient_grows_old_as_well_and_keeps_its_age_when_it_is_so_no_longer() -> None:
    diary, ages = Diary(duration_seconds=100), list[tuple[int, float]]()

    async def script(queue: WorkQueue) -> None:
        await asyncio.sleep(1)
        queue.add(A, is_patient=True)
        await asyncio.sleep(2)
        queue.add(A, is_patient=True)
        await asyncio.sleep(3)
        ages.append((queue.depth, queue.oldest_seconds))
        queue.add(A)
        await asyncio.sleep(4)
        ages.append((queue.depth, queue.oldest_seconds))

    async def scene() -> None:
        queue = WorkQueue(diary.reconcile, num_workers=1)  # which nobody runs
        await script(queue)

    run(scene())
    assert ages == [(1, 5), (1, 9)]


def test_a_failure_that_repeats_waits_by_chance_and_no_more_than_two_minutes() -> None:
    refusal = Unavailable("get", POD, "default", "HTTP status 503")
    diary = Diary(answers=(refusal,) * 11)
    play(lambda: WorkQueue(diary.reconcile, chance=lambda: 0.5), until=2000, script=adding(A))
    looks = [when for when, _ in diary.entries]
    pauses = [later - earlier for earlier, later in zip(looks, looks[1:], strict=False)]
    # 0.5 s and twice as long every time, up to 120 s, and three quarters of that at this chance
    assert pauses == pytest.approx([0.375 * 2**index for index in range(8)] + [90, 90, 90], abs=0.002)


def test_a_hint_is_looked_into_and_waits_for_the_pause_of_a_look_that_failed() -> None:
    """Hints come at 0, 1, 2, ... s. Looks fail at 1, 1.75 and 3.25, with pauses of 0.75, 1.5 and 3 s; the look at 6.25
    does well, and the hints after it are looked into at once."""
    bug = ValueError("no")
    diary = Diary(answers=(None, bug, bug, bug))

    async def script(queue: WorkQueue) -> None:
        for _ in range(11):
            queue.hint(A)
            await asyncio.sleep(1)

    play(lambda: WorkQueue(diary.reconcile, backoff=Backoff(0.75, 60.0), chance=lambda: 0.0), until=11.5, script=script)
    assert diary.entries == [(at, A) for at in (0, 1, 1.75, 3.25, 6.25, 7, 8, 9, 10)]


def test_a_job_that_changes_does_not_wait_for_the_pause() -> None:
    diary = Diary(answers=(ValueError("no"),))

    async def script(queue: WorkQueue) -> None:
        queue.add(A)
        await asyncio.sleep(1)
        queue.add(A)

    play(lambda: WorkQueue(diary.reconcile, backoff=Backoff(60.0, 60.0)), until=5, script=script)
    assert diary.entries == [(0, A), (1, A)]


@pytest.mark.parametrize(("answer", "looks"), [(None, [0.0, 1.0]), (ValueError("no"), [0.0, 61.0])])
def test_a_hint_while_it_is_looked_at_is_looked_into_afterwards(answer: object, looks: list[float]) -> None:
    diary = Diary(duration_seconds=1, answers=(answer,))

    async def script(queue: WorkQueue) -> None:
        queue.add(A)
        await asyncio.sleep(0.5)
        queue.hint(A, 0.1)
        queue.hint(A)

    play(lambda: WorkQueue(diary.reconcile, backoff=Backoff(60.0, 60.0), chance=lambda: 0.0), until=65, script=script)
    assert diary.entries == [(at, A) for at in looks]
