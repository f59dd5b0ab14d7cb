"""Calls into user code from an event loop: many trajectories, few processes, and limits of each call.

    calls = Calls({"search": Target("tools:search", {}, CallLimits(5.0, 1 << 30, 16, 65536))}, processes=8,
                  confinement="Off", network=())
    await calls.check()                                    # raises InvalidJob: a target cannot be called
    answer = await calls.call("12", "search", None, {"text": "rain"}, key="12/0/1")
    await calls.end("12")                                  # the trajectory is over: its objects and folder go
    calls.close()

A session is one trajectory. What goes wrong in a call costs its session: the others' calls of functions are made again
in another process, where the `key` says that it is the same call; objects in a process that has to be killed are gone.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rljob_api.v1alpha1.conversation import PYTHON_TOOL
from rljob_worker.errors import InvalidJob
from rljob_worker.sandbox.calls.call_pool import CallPool
from rljob_worker.sandbox.calls.call_process import CallProcess, PendingCall
from rljob_worker.sandbox.confinement.confine import ConfinementMode, check_confinement, check_readable
from rljob_worker.sandbox.confinement.proxy import Proxy, network_places
from rljob_worker.sandbox.guardian.environment import bounded_environment
from rljob_worker.sandbox.guardian.framing import Message
from rljob_worker.sandbox.guardian.user_processes import Guardian
from rljob_worker.sandbox.targets import Answer, CallError, CallLimits, Target

__all__ = ["Answer", "CallError", "CallLimits", "Calls", "Target"]


@dataclass(slots=True)
class _Place:
    """A process that has objects of a session."""

    process: CallProcess
    objects: set[str] = field(default_factory=set)
    """Targets of which it has one there."""
    has_state: bool = False
    """Whether calls count on what earlier ones left there."""


@dataclass(slots=True)
class _Session:
    """Where a trajectory's objects are."""

    shared: _Place | None = None
    isolated: _Place | None = None


class Calls:
    """Targets, and the sessions that call them. For one event loop."""

    def __init__(
        self,
        targets: Mapping[str, Target],
        *,
        processes: int,
        confinement: ConfinementMode,
        network: Sequence[str],
        ports: Sequence[int] = (),
        pythonpath: Sequence[str | os.PathLike[str]] = (),
    ) -> None:
        """processes: that sessions share.  network: `host:port` that confined processes may connect to, through a
        proxy.  ports: those of servers on this machine that they may connect to themselves.
        Raises InvalidJob: what this machine cannot confine, or a place that is none."""
        assert processes >= 1, "at least one process"
        check_confinement("calls into user code", confinement)
        _check_python_tool(targets, confinement)
        for name, target in targets.items():
            check_readable(f'target "{name}"', target.readable)
        places = network_places("calls into user code", network)
        self._targets = dict(targets)
        self._confinement = confinement
        self._num_processes, self._ports = processes, tuple(ports)
        names = [name for target in self._targets.values() for name in target.environment]
        self._proxy = Proxy(places) if places and confinement != "Off" else None
        environment = bounded_environment(pythonpath, names) | (self._proxy.environment if self._proxy else {})
        self._guardian = Guardian("rljob_worker.sandbox.calls.serving", environment)
        self._sessions: dict[str, _Session] = {}
        self._num_calls = 0
        self._started: CallPool | None = None

    async def check(self) -> None:
        """Wait until every target can be called. Raises InvalidJob: one is missing, fails to import, or does not take
        its options."""
        processes = [*self._pool.shared[:1], *([] if self._pool.copied is None else [self._pool.copied])]
        problems = [problem for process in processes if (problem := await process.ready) is not None]
        for problem in [self._pool.problem, *problems, *self._pool.refused.values()]:
            if problem is not None:
                raise InvalidJob(problem)

    async def call(
        self, session: str, target: str, method: str | None, arguments: Mapping[str, Any], key: str = ""
    ) -> Answer:
        """Call a function, or a method of the session's object of a class. Errors come as answers."""
        if target not in self._targets:
            names = ", ".join(self._targets) or "none"
            return _refusal(f'there is no target "{target}"; there are {names}')
        message = {"session": session, "target": target, "method": method, "arguments": arguments, "key": key}
        while True:
            try:
                call = self._pending(message, needs_object=method is not None)
            except (TypeError, ValueError, RecursionError) as error:
                return _refusal(f"the arguments are not JSON: {error}")
            self._pool.submit(call, self._process_for(session, call))
            answer = await call.future
            if not call.is_lost:
                return answer

    async def end(self, session: str) -> None:
        """Forget a session: `close` of its objects is called where they have it, and its own process is killed; at once
        where a call of it is still under way."""
        state = self._sessions.pop(session, _Session())
        if state.shared is not None:
            state.shared.process.num_sessions -= 1
            await self._close_objects(session, state.shared)
        if state.isolated is not None:
            try:
                if not state.isolated.process.is_busy:
                    await self._close_objects(session, state.isolated)
            finally:
                self._pool.drop(state.isolated.process, "its session has ended")

    async def _close_objects(self, session: str, place: _Place) -> None:
        messages = ({"session": session, "target": name, "end": True} for name in sorted(place.objects))
        calls = [self._pending(message, needs_object=True) for message in messages]
        for call in calls:
            self._pool.submit(call, place.process)
        await asyncio.gather(*(call.future for call in calls))

    def close(self) -> None:
        """Kill every process; calls without an answer get the error Died."""
        if self._started is not None:
            self._started.close()
        self._guardian.close()
        if self._proxy is not None:
            self._proxy.close()

    @property
    def _pool(self) -> CallPool:
        """Made in the loop of the first caller."""
        if self._started is None:
            port = None if self._proxy is None else self._proxy.port
            self._started = CallPool(
                self._guardian, self._targets, self._num_processes, self._confinement, port, self._ports
            )
        return self._started

    def _pending(self, message: Message, *, needs_object: bool) -> PendingCall:
        """Raises ValueError, TypeError: arguments that are not JSON."""
        self._num_calls += 1
        name = message["target"]
        limits = self._targets[name].limits
        framed = {"call": self._num_calls, **message, "limit": limits.seconds, "output": limits.output_bytes}
        body = json.dumps(framed, allow_nan=False).encode()
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        return PendingCall(self._num_calls, name, self._targets[name], body, future, needs_object)

    def _process_for(self, session: str, call: PendingCall) -> CallProcess | None:
        """The session's own process, the one with its object, or None where any will do."""
        state = self._sessions.setdefault(session, _Session())
        if not call.target.isolated and not call.needs_object:
            return None
        place: _Place | None
        if call.target.isolated:
            place = state.isolated = self._isolated_place(state)
        else:
            place = state.shared = state.shared or self._shared_place()
        if place is None:
            return None
        if call.needs_object:
            place.objects.add(call.name)
        place.has_state |= call.needs_state
        return place.process

    def _isolated_place(self, state: _Session) -> _Place:
        """The session's own process: a new one where the last is gone and nothing counts on it."""
        place = state.isolated
        if place is None or (place.process.lost is not None and not place.has_state):
            return _Place(self._pool.launch("Isolated"))
        return place

    def _shared_place(self) -> _Place | None:
        """In the shared process that has the fewest sessions; None where there is no such process."""
        if not self._pool.shared:
            return None
        process = min(self._pool.shared, key=lambda process: process.num_sessions)
        process.num_sessions += 1
        return _Place(process)


def _refusal(message: str) -> Answer:
    return Answer(None, CallError("Refused", message), 0.0)


def _check_python_tool(targets: Mapping[str, Target], confinement: ConfinementMode) -> None:
    """Raises InvalidJob where models may run programs that nothing confines."""
    for name, target in targets.items():
        if target.run == PYTHON_TOOL and (confinement != "Required" or not target.isolated):
            missing = "confinement: Required" if confinement != "Required" else "isolated: true"
            raise InvalidJob(f'target "{name}": {PYTHON_TOOL} runs what a model writes; it needs {missing}')
