"""Rewards of rows, computed in other processes while the worker goes on with other work.

    runner = RewardRunner(spec.rewards, processes=4, pythonpath=[job_folder])
    runner.check()                       # functions importable and callable, before any accelerator works
    runner.begin(some_rows)              # returns at once; any number of times
    runner.begin(other_rows)
    result = runner.collect(row_ids)     # result.total [rows], result.rewards [rows, num_rewards]
    runner.close()

A time-out costs its row only: reward 0, counted, named in the log, and the process is replaced. A reward that raises,
answers NaN or twice ends its process is the job's mistake, unless its `onError` says otherwise: BadData with the
reward, the row, and the line of the user's file. What is collected is a function of the rows, in whatever order and
pieces they were begun.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from queue import SimpleQueue
from threading import Thread
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rljob_worker.rewards.combine import combine, metrics, misses, services
from rljob_worker.rewards.results import RewardResult
from rljob_worker.rewards.running.pool import RewardPool
from rljob_worker.rewards.running.round import Round

if TYPE_CHECKING:
    from rljob_api.v1alpha1.data import RewardSpec

Rows = Sequence[Mapping[str, Any]]

GATHER_SECONDS = 0.05
"""Rows that were begun wait so long for others, until somebody waits for them: dealt one by one they would interrupt
the thread and the cores that generate the others, which costs more than most rewards take."""

_log = logging.getLogger("rljob.rewards")


class RewardRunner:
    """The rewards of a job. Its methods are for one thread; between `begin` and `collect` another sees to the
    processes."""

    def __init__(
        self,
        rewards: Sequence[RewardSpec],
        processes: int,
        pythonpath: Sequence[str | os.PathLike[str]] = (),
        columns: Sequence[str] = (),
    ) -> None:
        """columns: of the data, in every row."""
        self._specs = list(rewards)
        self._pool = RewardPool(rewards, processes, pythonpath, columns)
        self._flight: _Flight | None = None

    def check(self) -> None:
        """Wait until rewards can be called. Raises InvalidJob: one is missing, fails to import, or does not take the
        options."""
        self._pool.new_round()

    def begin(self, rows: Rows) -> None:
        """Have rewards of these rows computed; `row_id` and `source` name a row in messages. Raises what has gone
        wrong with rows that were begun before."""
        if self._flight is None:
            self._flight = _Flight(self._pool)
        elif self._flight.has_failed:
            self.collect()
        self._flight.add(rows)

    def collect(self, row_ids: Sequence[int] | None = None, *, exactly: bool = False) -> RewardResult:
        """Every reward of every row that was begun, in this order; without one, in that of `begin`. Waits for them.
        exactly: metrics have what their sums leave of exact ones. Raises BadData, InvalidJob."""
        if self._flight is None:
            self.begin([])
        assert self._flight is not None
        flight, self._flight = self._flight, None
        work = flight.land()
        order: Sequence[int] = range(len(work.rows))
        if row_ids is not None:
            place = {row["row_id"]: at for at, row in enumerate(work.rows)}
            assert len(place) == len(work.rows) == len(row_ids), "rows are collected once, all that were begun"
            order = [place[row_id] for row_id in row_ids]
        return self._result(work, order, exactly=exactly)

    def score(self, rows: Rows) -> RewardResult:
        """Begin and collect in one."""
        self.begin(rows)
        return self.collect()

    def close(self) -> None:
        """Kill the processes and everything they started."""
        if self._flight is not None:
            self._flight.abandon()
        self._pool.close()

    def __enter__(self) -> RewardRunner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _result(self, work: Round, order: Sequence[int], *, exactly: bool) -> RewardResult:
        missed = work.missed(order)
        for item in missed:
            _log.warning("%s; its reward is 0", item.message)
        rewards, names = work.rewards(order), [spec.name for spec in self._specs]
        return RewardResult(
            rewards,
            combine(rewards, [spec.weight for spec in self._specs]),
            metrics(names, rewards, work.extra(order), exactly=exactly)
            | misses(missed, work.num_retries())
            | services(work.use()),
            missed,
            work.answers(order),
            work.steps(order),
        )


class _Flight:
    """A round under way, and the thread that sees to it."""

    def __init__(self, pool: RewardPool) -> None:
        self._pool = pool
        self._work = pool.new_round()
        self._incoming: SimpleQueue[Rows | None] = SimpleQueue()
        self._failure: BaseException | None = None
        self._is_whole = self._is_awaited = self._is_abandoned = False
        self._deals_at = time.monotonic() + GATHER_SECONDS
        self._thread = Thread(target=self._run, name="rewards", daemon=True)
        self._thread.start()

    @property
    def has_failed(self) -> bool:
        return not self._thread.is_alive()

    def add(self, rows: Rows) -> None:
        self._incoming.put(rows)

    def land(self) -> Round:
        """The round when every row is known. Raises what went wrong."""
        self._incoming.put(None)
        self._is_awaited = True
        self._pool.wake()
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        return self._work

    def abandon(self) -> None:
        self._is_abandoned = True
        self._pool.wake()
        self._thread.join()

    def _run(self) -> None:
        try:
            while self._goes_on() and not self._is_abandoned:
                self._pool.turn(self._work, None if self._is_whole else self._deals_at)
        except BaseException as error:  # raised by `land`, in the thread that asked
            self._failure = error
        finally:
            self._pool.drop_unfinished()

    def _goes_on(self) -> bool:
        """Take in what was added, once it is time to; whether anything is open, or may still come."""
        now = time.monotonic()
        if not self._is_awaited and now < self._deals_at:
            return True
        self._deals_at = now + GATHER_SECONDS
        gathered = list[Mapping[str, Any]]()
        while not self._incoming.empty():
            rows = self._incoming.get()
            self._is_whole = self._is_whole or rows is None
            gathered += rows or ()
        if gathered:
            self._work.add(gathered)
        return not (self._is_whole and self._work.done)
