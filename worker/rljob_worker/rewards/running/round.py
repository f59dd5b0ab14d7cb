"""The bookkeeping of rows from `begin` to `collect`: which wait, where each runs, when its time is up. No I/O."""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rljob_worker.batch.row_index import row_number
from rljob_worker.errors import BadData
from rljob_worker.rewards.combine import Rewards
from rljob_worker.rewards.results import Missed, Steps
from rljob_worker.rewards.running.chunks import NO_STEPS, RewardCall, RewardChunk, cut

ASYNC_GRACE_SECONDS = 2.0
"""An async row ends by its own clock; one that does not within this holds up the loop and costs the process."""

MAX_OPEN_ROWS = 64
"""Rows of an async reward beyond which a process gets no more before some are done."""


class Round:
    """Every reward of every row, from waiting to known. Rows are numbered from 0 in the order in which they come."""

    def __init__(self, calls: Sequence[RewardCall], processes: int) -> None:
        self._calls = calls
        self._processes = processes
        self.rows: list[Mapping[str, Any]] = []
        self._rewards: list[list[float]] = [[] for _ in calls]
        self._extra: list[list[dict[str, float]]] = [[] for _ in calls]
        self._answers: dict[int, str | None] = {}
        self._steps: dict[tuple[int, int], Steps] = {}
        """By reward and row."""
        self._missed: list[Missed] = []
        self._num_failed: dict[tuple[int, int], int] = {}
        """Calls of a reward on a row that failed."""
        self._delayed: list[tuple[float, int, int]] = []
        """A heap of (seconds, reward, row) that are due again."""
        self._num_open = 0
        self._deaths: set[tuple[int, int]] = set()
        self._use: dict[str, Counter[str]] = {call.service: Counter() for call in calls if call.service is not None}
        self._queues: list[deque[RewardChunk]] = [deque() for _ in calls]

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """More rows, whose rewards wait for a process."""
        first = len(self.rows)
        self.rows.extend(rows)
        self._num_open += len(rows) * len(self._calls)
        for reward, call in enumerate(self._calls):
            self._rewards[reward].extend(0.0 for _ in rows)
            self._extra[reward].extend({} for _ in rows)
            self._queues[reward].extend(cut(reward, first, len(rows), self._processes, call))

    @property
    def done(self) -> bool:
        return self._num_open == 0

    def rewards(self, order: Sequence[int]) -> Rewards:
        """[rows, num_rewards], unweighted, of rows in this order; 0 where a reward was missed."""
        return np.array(self._rewards, np.float64).reshape(len(self._calls), -1).T[np.asarray(order, np.int64)]

    def extra(self, order: Sequence[int]) -> list[list[dict[str, float]]]:
        """[num_rewards][rows] what each reward function returned besides the reward."""
        return [[of_reward[row] for row in order] for of_reward in self._extra]

    def answers(self, order: Sequence[int]) -> dict[int, str | None]:
        """What the first reward took for answers, of those rows of which it says so."""
        return {at: self._answers[row] for at, row in enumerate(order) if row in self._answers}

    def steps(self, order: Sequence[int]) -> dict[int, list[Steps]]:
        """Steps of each reward that is spread over steps: [rows]; none for rows that it missed."""
        spread = (reward for reward, call in enumerate(self._calls) if call.has_steps)
        return {reward: [self._steps.get((reward, row), ()) for row in order] for reward in spread}

    def missed(self, order: Sequence[int]) -> tuple[Missed, ...]:
        """In the order of rows, and in that of rewards where a row has several."""
        place = {row: at for at, row in enumerate(order)}
        result = (replace(item, row=place[item.row]) for item in self._missed)
        names = [call.name for call in self._calls]
        return tuple(sorted(result, key=lambda item: (item.row, names.index(item.reward))))

    def num_retries(self) -> dict[str, int]:
        """Calls that were made again, by the name of their reward; none that had none."""
        result = Counter[str]()
        for (reward, _), count in self._num_failed.items():
            result[self._calls[reward].name] += count
        return {name: count for name, count in result.items() if count}

    def use(self) -> dict[str, Counter[str]]:
        """By service: requests, errors, seconds, rows and queue_seconds of calls."""
        return self._use

    @property
    def due(self) -> float | None:
        """When the next call is made again, seconds."""
        return self._delayed[0][0] if self._delayed else None

    def next_chunk(self, now: float) -> RewardChunk | None:
        """Work for an idle process; the clock of a plain reward's first row starts."""
        self._take_due(now)
        queue = next(filter(None, self._queues), None)
        if queue is None:
            return None
        chunk = queue.popleft()
        chunk.dealt = now
        self._start_next(chunk, now)
        return chunk

    def more_for(self, chunk: RewardChunk, now: float) -> list[int]:
        """Waiting rows that a process works on besides, when it is on an async reward and has not enough of it."""
        if not self._calls[chunk.reward].asynchronous or chunk.alone:
            return []
        self._take_due(now)
        taken, queue = list[int](), self._queues[chunk.reward]
        while queue and not queue[0].alone and len(chunk.rows) < MAX_OPEN_ROWS:
            taken += (rows := queue.popleft().waiting)
            chunk.waiting += rows
            chunk.dealt = now
        return taken

    def started(self, chunk: RewardChunk, row: int, now: float) -> None:
        """An async reward has taken up a row."""
        chunk.waiting.remove(row)
        chunk.running[row] = now

    def finished(self, chunk: RewardChunk, row: int, outcome: Mapping[str, Any], now: float) -> None:
        """A row's outcome is known. Raises BadData when the reward failed on it and the job is to end of that."""
        chunk.running.pop(row)
        if (service := self._calls[chunk.reward].service) is not None:
            self._use[service].update(outcome.get("use", {}))
        if "timeout" in outcome:
            self._time_out(chunk.reward, row, now)
        elif (problem := self._problem(chunk.reward, outcome)) is not None:
            self._failed(chunk.reward, row, f"{self._where(chunk.reward, row)} {problem}", now)
        else:
            self._keep(chunk.reward, row, outcome)
        self._start_next(chunk, now)

    def _problem(self, reward: int, outcome: Mapping[str, Any]) -> str | None:
        if self._calls[reward].has_steps and "problem" not in outcome and "step_rewards" not in outcome:
            return NO_STEPS
        return outcome.get("problem")

    def _keep(self, reward: int, row: int, outcome: Mapping[str, Any]) -> None:
        if self._calls[reward].has_steps:
            self._steps[reward, row] = steps = [(int(end), float(value)) for end, value in outcome["step_rewards"]]
            self._rewards[reward][row] = math.fsum(value for _, value in steps)
        else:
            self._rewards[reward][row] = outcome["reward"]
        self._extra[reward][row] = outcome["metrics"]
        if reward == 0 and "answer" in outcome:
            self._answers[row] = outcome["answer"]
        self._num_open -= 1

    def deadline(self, chunk: RewardChunk) -> float:
        """When the process of this chunk has to be killed, seconds."""
        call = self._calls[chunk.reward]
        grace = ASYNC_GRACE_SECONDS if call.asynchronous else 0.0
        return min(chunk.running.values(), default=chunk.dealt) + call.limit_seconds + grace

    def expired(self, chunk: RewardChunk, now: float) -> None:
        """The process was killed for being late: its only running row is guilty, the others get another process.

        Of several async rows in flight one blocks the loop and nobody can tell which: each runs again alone.
        """
        self._give_back(chunk)
        if len(chunk.running) > 1:
            self._queues[chunk.reward].extend(
                RewardChunk(chunk.reward, deque([row]), alone=True) for row in chunk.running
            )
            return
        for row in chunk.running:
            self._time_out(chunk.reward, row, now)

    def died(self, chunk: RewardChunk, how: str, now: float) -> None:
        """The process ended by itself. A row gets a second process, alone; it has failed when it ends that one too."""
        self._give_back(chunk)
        for row in chunk.running:
            suspect = (chunk.reward, row)
            if suspect in self._deaths and len(chunk.running) == 1:
                message = f"{self._where(chunk.reward, row)} ended its process twice ({how})"
                self._failed(chunk.reward, row, message, now)
                continue
            self._deaths.add(suspect)
            self._queues[chunk.reward].append(RewardChunk(chunk.reward, deque([row]), alone=True))

    def _take_due(self, now: float) -> None:
        while self._delayed and self._delayed[0][0] <= now:
            _, reward, row = heapq.heappop(self._delayed)
            self._queues[reward].append(RewardChunk(reward, deque([row])))

    def _give_back(self, chunk: RewardChunk) -> None:
        if chunk.waiting:
            self._queues[chunk.reward].append(RewardChunk(chunk.reward, chunk.waiting))

    def _start_next(self, chunk: RewardChunk, now: float) -> None:
        if not self._calls[chunk.reward].asynchronous and chunk.waiting:
            chunk.running[chunk.waiting.popleft()] = now

    def _failed(self, reward: int, row: int, message: str, now: float) -> None:
        """Raises BadData where the job is to end of it."""
        call = self._calls[reward]
        num_failed = self._num_failed.get((reward, row), 0) + 1
        if call.on_error == "Zero":
            self._miss(reward, Missed(call.name, row, message, "errors"))
        elif call.on_error == "Retry" and num_failed <= call.retries:
            self._num_failed[reward, row] = num_failed
            heapq.heappush(self._delayed, (now + call.wait_seconds(num_failed), reward, row))
        else:
            raise BadData(f"{message}; it was called {num_failed} times" if num_failed > 1 else message)

    def _time_out(self, reward: int, row: int, now: float) -> None:
        """Raises BadData where a service was late and the job is to end of it."""
        call = self._calls[reward]
        if call.service is not None:
            late = f"{self._where(reward, row)}: service {call.service} did not answer within {call.limit_seconds:g} s"
            self._failed(reward, row, late, now)
            return
        message = f'reward "{call.name}" timed out after {call.limit_seconds:g} s on {self._name(row)}'
        self._miss(reward, Missed(call.name, row, message))

    def _miss(self, reward: int, missed: Missed) -> None:
        self._missed.append(missed)
        if reward == 0:
            self._answers[missed.row] = None
        self._num_open -= 1

    def _where(self, reward: int, row: int) -> str:
        return f'reward "{self._calls[reward].name}" on {self._name(row)}'

    def _name(self, row: int) -> str:
        values = self.rows[row]
        source = f" (source {values['source']})" if "source" in values else ""
        return f"row {row_number(values.get('row_id', row))}{source}"
