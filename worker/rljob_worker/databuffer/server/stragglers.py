"""Detects stragglers: a worker posts what it is doing, and when a wait has run out, the hosts in question are asked,
all at once, what their workers last said."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rljob_worker.databuffer.links.links import Links
from rljob_worker.databuffer.protocol.peer_side import Question, WhatDoTheyDo, WhatIsMissing
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.databuffer.routes.job_tree import JobTree
from rljob_worker.errors import DeadlineExceeded, PeerLost, RLJobError

ASKED_HOSTS = 16
SHOWN = 8
ASK_SECONDS = 5.0
WAITED: type[RLJobError] = DeadlineExceeded


class WorkerStatuses:
    """Last status of every local rank."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._statuses: dict[int, tuple[float, dict[str, Any]]] = {}

    def set(self, rank: int, status: Mapping[str, Any]) -> None:
        with self._lock:
            self._statuses[rank] = (self._clock(), dict(status))

    def status(self, rank: int) -> dict[str, Any]:
        """The last post and its age in `age_seconds`; empty when there was none."""
        with self._lock:
            if rank not in self._statuses:
                return {}
            when, status = self._statuses[rank]
        return {**status, "age_seconds": round(self._clock() - when, 1)}

    def ranks(self) -> list[int]:
        with self._lock:
            return sorted(self._statuses)

    def last_words(self, rank: int) -> str:
        """One line for an error message."""
        status = self.status(rank)
        if not status:
            return "it has not said anything yet"
        age = status.pop("age_seconds")
        said = ", ".join(f"{name} {value}" for name, value in status.items())
        return f"last said {age:.0f} s ago: {said}"


class StragglerReport:
    """Finds out who is missing; every look is bounded by a few times `ASK_SECONDS`."""

    def __init__(self, here: Host, shape: JobTree, links: Links, answers: Callable[[Question], dict[str, Any]]) -> None:
        self._here = here
        self._shape = shape
        self._links = links
        self._answers = answers

    def of_hosts(self, edge: str, step: int, hosts: Iterable[Host]) -> tuple[list[str], type[RLJobError]]:
        """Producers on some hosts that have not put their part of an edge, and what they last said.

        PeerLost rather than DeadlineExceeded where a host does not answer.
        """
        result, kind = list[str](), WAITED
        for host, answer in self._ask(list(hosts)[:ASKED_HOSTS], WhatIsMissing(edge, step)).items():
            if isinstance(answer, PeerLost):
                result.append(f"host {host}: {answer}")
                kind = PeerLost
            else:
                result += _lines(host, answer) or [f"host {host}: its workers have put everything, it is being offered"]
        return _shown(result), kind

    def of_gathering(self, topic: str, step: int) -> tuple[list[str], type[RLJobError]]:
        """Who has not contributed to a gathering: from the root down to the members that are missing."""
        result, kind, below = list[str](), WAITED, [self._shape.root]
        while below and not result:
            answers = self._ask(below[:ASKED_HOSTS], WhatIsMissing(topic, step))
            below = []
            for host, answer in answers.items():
                if isinstance(answer, PeerLost):
                    result.append(f"host {host}: {answer}")
                    kind = PeerLost
                else:
                    result += _lines(host, answer)
                    below += [Host.named(name) for name in answer["below"]]
        return _shown(result), kind

    def last_words(self, host: Host, rank: int) -> str:
        """What a worker last said it was doing."""
        answer = self._ask([host], WhatDoTheyDo())[host]
        return str(answer) if isinstance(answer, PeerLost) else answer.get(str(rank), "it has not said anything yet")

    def _ask(self, hosts: Sequence[Host], question: Question) -> dict[Host, dict[str, Any] | PeerLost]:
        others = [host for host in hosts if host != self._here]
        answers = dict(self._links.ask(others, question, ASK_SECONDS)) if others else {}
        if self._here in hosts:
            answers[self._here] = self._answers(question)
        return {host: answers[host] for host in hosts}


def _lines(host: Host, answer: Mapping[str, Any]) -> list[str]:
    return [f"{who} (host {host}): {said}" for who, said in answer["said"].items()]


def _shown(lines: list[str]) -> list[str]:
    more = [f"and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
    return lines[:SHOWN] + more
