"""The engines of a team's policies as one: each generates the turns of the agents that its policy plays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from rljob_worker.batch import Column, Indices
from rljob_worker.engines.rollout.requests import EndedRequests, Load, PartialResponses, Requests

STEPS_IN_TURN = 8
"""Decode steps of an engine while others have something to do, too."""


class PlayingEngine(Protocol):
    """What conversations need of a rollout engine (`engines.rollout.protocol`)."""

    @property
    def version(self) -> int: ...
    @property
    def load(self) -> Load: ...
    def submit(self, requests: Requests, /) -> None: ...
    def advance(self, most_steps: int | None = None) -> EndedRequests: ...
    def wake(self) -> None: ...
    def peek(self, row_ids: Indices) -> PartialResponses: ...
    def abort(self, row_ids: Indices) -> EndedRequests: ...
    def hold(self, row_ids: Indices) -> None: ...
    def release(self, row_ids: Indices) -> None: ...


@dataclass(frozen=True, slots=True)
class PolicyEngines:
    """Rows go to engines by the agent that acts in them. Engines decode in turn, on which no token depends."""

    engines: Sequence[PlayingEngine]
    """At least one, of each policy."""
    engine_of_agent: Indices
    """int64 [agents]."""
    rows_per_agent: int

    @property
    def version(self) -> int:
        """All policies have one."""
        return self.engines[0].version

    @property
    def load(self) -> Load:
        """What all have to do together."""
        loads = [engine.load for engine in self.engines]
        return Load(
            running=sum(load.running for load in loads),
            waiting=sum(load.waiting for load in loads),
            paused=sum(load.paused for load in loads),
            free_tokens=sum(load.free_tokens for load in loads),
        )

    def submit(self, requests: Requests) -> None:
        """Each request to its engine."""
        for engine, mine in self._shares(requests.row_ids):
            engine.submit(requests.take(mine))

    def advance(self, most_steps: int | None = None) -> EndedRequests:
        """What has ended of any, after a few steps of each that has something to do."""
        busy = [engine for engine in self.engines if engine.load.running or engine.load.waiting]
        steps = most_steps if len(busy) < 2 else min(most_steps or STEPS_IN_TURN, STEPS_IN_TURN)
        return joined([engine.advance(steps) for engine in busy or self.engines[:1]])

    def wake(self) -> None:
        """Let each return after the step that it is in."""
        for engine in self.engines:
            engine.wake()

    def peek(self, row_ids: Indices) -> PartialResponses:
        """What there is of these rows, in their order."""
        shares = [(mine, engine.peek(row_ids[mine])) for engine, mine in self._shares(row_ids)]
        places = np.argsort(np.concatenate([mine for mine, _ in shares]))
        return PartialResponses(
            *(
                Column.concat([getattr(part, name) for _, part in shares]).take(places)
                for name in ("response_ids", "log_probs", "token_versions")
            )
        )

    def abort(self, row_ids: Indices) -> EndedRequests:
        """What there is of these rows."""
        shares = list(self._shares(row_ids)) or [(self.engines[0], np.empty(0, np.int64))]
        return joined([engine.abort(row_ids[mine]) for engine, mine in shares])

    def hold(self, row_ids: Indices) -> None:
        """Keep keys and values of rows."""
        for engine, mine in self._shares(row_ids):
            engine.hold(row_ids[mine])

    def release(self, row_ids: Indices) -> None:
        """Keep them no longer."""
        for engine, mine in self._shares(row_ids):
            engine.release(row_ids[mine])

    def _shares(self, row_ids: Indices) -> Iterator[tuple[PlayingEngine, Indices]]:
        """Engines, and places of the rows that each has; none of engines without a row."""
        agents = row_ids // self.rows_per_agent % len(self.engine_of_agent)
        number = self.engine_of_agent[agents]
        for at, engine in enumerate(self.engines):
            if len(mine := np.flatnonzero(number == at)):
                yield engine, mine


def joined(parts: Sequence[EndedRequests]) -> EndedRequests:
    """Requests that ended in several engines."""
    if len(parts) == 1:
        return parts[0]
    return EndedRequests(
        row_ids=np.concatenate([part.row_ids for part in parts]),
        turns=np.concatenate([part.turns for part in parts]),
        response_ids=Column.concat([part.response_ids for part in parts]),
        log_probs=Column.concat([part.log_probs for part in parts]),
        token_versions=Column.concat([part.token_versions for part in parts]),
        endings=np.concatenate([part.endings for part in parts]),
        top_log_probs={row: top for part in parts for row, top in part.top_log_probs.items()},
    )
