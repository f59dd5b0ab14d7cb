"""When the operator calls itself ill."""

import asyncio

import pytest

from rljob_operator.process.probes import Health, LoopLag, Vitals, fault_of
from rljob_operator.process.settings import ProbeSettings
from rljob_operator.tests.virtual_time import block, run

LIMITS = ProbeSettings()  # 300 s of silence, 600 s of waiting, 5 s of lag


@pytest.mark.parametrize(
    ("vitals", "words"),
    [
        (Vitals(), None),
        (Vitals(watch_silence_seconds=1000), None),
        (Vitals(api_error="connection refused"), None),
        (Vitals(watch_silence_seconds=1000, api_error="refused"), "no watch has spoken for 1000 s, and a read fails"),
        (Vitals(num_deaf_resyncs=1), None),
        (Vitals(num_deaf_resyncs=2), "2 resyncs in a row found changes"),
        (Vitals(queue_oldest_seconds=600), None),
        (Vitals(queue_oldest_seconds=601), "a job has waited for 601 s"),
        (Vitals(loop_lag_seconds=5.5), "the event loop was 5.5 s late"),
    ],
)
def test_ailment(vitals: Vitals, words: str | None) -> None:
    result = fault_of(vitals, LIMITS)
    assert (result is None) if words is None else (result is not None and result.startswith(words))


def test_the_api_is_read_only_when_watches_are_silent() -> None:
    reads: list[str] = []
    vitals = Vitals(watch_silence_seconds=10)

    async def read() -> str | None:
        reads.append("read")
        return "connection refused"

    async def scene() -> None:
        nonlocal vitals
        health = Health(lambda: vitals, read, LIMITS)
        await health.check()
        assert (reads, health.fault) == ([], None)
        vitals = Vitals(watch_silence_seconds=301)
        await health.check()
        assert reads == ["read"]
        assert health.fault == "no watch has spoken for 301 s, and a read fails: connection refused"
        vitals = Vitals()
        await health.check()
        assert health.fault is None, "it may recover by itself"

    run(scene())


def test_an_answer_is_ready_while_the_api_server_hangs() -> None:
    vitals = Vitals(queue_oldest_seconds=601)
    reads: list[str] = []

    async def read() -> str | None:
        reads.append("read")
        await asyncio.sleep(3600)
        return None

    async def scene() -> None:
        nonlocal vitals
        health = Health(lambda: vitals, read, LIMITS)
        checking = asyncio.create_task(health.run())
        await asyncio.sleep(1)
        vitals = Vitals(watch_silence_seconds=301)
        await asyncio.sleep(60)
        assert reads == ["read"] and health.fault == "a job has waited for 601 s", "the last that is known"
        checking.cancel()

    run(scene())


def test_lag_is_what_a_blocked_loop_was_late_by() -> None:
    async def scene() -> None:
        lag = LoopLag()
        measuring = asyncio.create_task(lag.run())
        await asyncio.sleep(3.5)
        assert lag.seconds == pytest.approx(0, abs=1e-6)
        block(2.5)
        await asyncio.sleep(0.1)
        assert lag.seconds == pytest.approx(2.0)  # due at 4.0, woken at 6.0
        await asyncio.sleep(40)
        assert lag.seconds == pytest.approx(0, abs=1e-6), "half a minute later it is forgotten"
        measuring.cancel()

    run(scene())
