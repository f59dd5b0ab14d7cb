"""The data buffers of a job, as far as control knows them: one dictionary, and gates that hold up what tests name."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.errors import DeadlineExceeded, PeerLost
from rljob_worker.metrics.report import merge_reports


class FakeControlChannel:
    """What `num_workers` workers have said. `end(ordinal)` is one worker's end of it."""

    def __init__(self, num_workers: int, *, timeout_seconds: float = TEST_TIMEOUT_SECONDS, seed: int = 0) -> None:
        self.num_workers, self._grace_seconds, self._rng = num_workers, timeout_seconds, random.Random(seed)
        self._reports: dict[tuple[str, int], dict[int, bytes]] = {}
        self.num_validating = 0
        self.announced: dict[tuple[str, int], bytes] = {}
        self.asked_by: list[int] = []
        self.log: list[tuple[str, int, int]] = []
        """("report", ordinal, step) and ("verdict", 0, step) as they came."""
        self._broken: PeerLost | None = None
        self._gates: set[tuple[str, int]] = set()
        self.changed = threading.Condition()

    def end(self, ordinal: int) -> FakeChannelEnd:
        return FakeChannelEnd(self, ordinal)

    def hold(self, what: str, step: int) -> None:
        """What is called so of `step` does not pass until it is let go: `collect`, `verdict`, or `report/1`."""
        self._gates.add((what, step))

    def let_go(self, what: str, step: int) -> None:
        with self.changed:
            self._gates.discard((what, step))
            self.changed.notify_all()

    def break_all(self) -> None:
        """As when a host is gone: all that wait, now or later, are notified."""
        with self.changed:
            self._broken = PeerLost("a worker of the job is gone")
            self.changed.notify_all()

    def wait(self, ready: Callable[[], bool], late: Callable[[], str]) -> None:
        with self.changed:
            if not self.changed.wait_for(lambda: self._broken or ready(), self._grace_seconds):
                raise DeadlineExceeded(late())
            if self._broken:
                raise PeerLost(*self._broken.args)

    def pass_gate(self, what: str, step: int) -> None:
        self.wait(lambda: (what, step) not in self._gates, lambda: f"held up: {what} of step {step}")

    def add_report(self, ordinal: int, step: int, payload: bytes, topic: str) -> None:
        with self.changed:
            reports = self._reports.setdefault((topic, step), {})
            assert ordinal not in reports, "a step is reported once"
            reports[ordinal] = payload
            self.log.append((topic, ordinal, step))
            self.changed.notify_all()

    def merged(self, step: int, topic: str) -> bytes:
        reports = self._reports.setdefault((topic, step), {})
        expected = self.num_workers if topic == "report" else self.num_validating
        self.wait(lambda: len(reports) == expected, lambda: f"step {step}: {self._late(reports)} is late")
        parts = list(reports.values())
        self._rng.shuffle(parts)
        half = self._rng.randint(1, len(parts))
        return merge_reports([merge_reports(parts[:half]), *parts[half:]])

    def _late(self, result: dict[int, bytes]) -> str:
        return ", ".join(f"worker {ordinal}" for ordinal in range(self.num_workers) if ordinal not in result)

    def put_up(self, topic: str, step: int, payload: bytes) -> None:
        with self.changed:
            assert (topic, step) not in self.announced, "a step is judged once"
            self.announced[topic, step] = payload
            self.log.append((topic, 0, step))
            self.changed.notify_all()


class FakeChannelEnd:
    """The part of a data buffer client that control uses."""

    def __init__(self, channel: FakeControlChannel, ordinal: int) -> None:
        self._channel, self.ordinal = channel, ordinal
        self.num_bytes = 0.0
        """That this worker has moved since it was last asked."""

    def report(self, step: int, payload: bytes, topic: str = "report") -> None:
        self._channel.pass_gate(f"{topic}/{self.ordinal}", step)
        self._channel.add_report(self.ordinal, step, payload, topic)

    def collect(self, step: int, topic: str = "report", deadline_seconds: float | None = None) -> bytes:
        self._channel.pass_gate("collect", step)
        return self._channel.merged(step, topic)

    def announce(self, topic: str, step: int, payload: bytes) -> None:
        self._channel.pass_gate(topic, step)
        self._channel.put_up(topic, step, payload)

    def await_announcement(self, topic: str, step: int) -> bytes:
        place = (topic, step)
        self._channel.wait(
            lambda: place in self._channel.announced, lambda: f"the lead is late: {topic} of step {step}"
        )
        return self._channel.announced[place]

    def request_stop(self) -> None:
        self._channel.asked_by.append(self.ordinal)

    def stop_requested(self) -> bool:
        return bool(self._channel.asked_by)

    def publish(self, published: dict[int, set[int]], version: int) -> None:
        """This trainer has sent a version."""
        with self._channel.changed:
            published.setdefault(version, set()).add(self.ordinal)
            self._channel.changed.notify_all()

    def await_published(self, published: dict[int, set[int]], version: int, trainers: set[int]) -> None:
        self._channel.wait(lambda: published.get(version) == trainers, lambda: f"version {version} is late")

    def statistics(self) -> dict[str, float]:
        num_bytes, self.num_bytes = self.num_bytes, 0.0
        return {"put_bytes/weights/actor": num_bytes}

    def set_status(self, status: dict[str, object]) -> None:
        pass
