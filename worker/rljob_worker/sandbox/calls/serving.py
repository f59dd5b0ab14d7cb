"""A process that answers calls: functions and objects of user code, loaded once, called with values of JSON.

    <- {"targets": {"search": {"run": "tools:search", "options": {}}, ...}}               once
    -> {"ready": {"search": true}, "refused": {"calculate": "why"}}                       whether each is asynchronous
    <- {"call": 7, "session": "12", "target": "search", "method": null, "arguments": {}, "key": "12/0/1",
        "limit": 5.0, "output": 65536}
    <- {"call": 8, "session": "12", "target": "game", "end": true, ...}                   forget the session's object
    -> {"call": 7, "value": ...}  |  {"call": 7, "error": ["Raised", "ValueError: ..."]}

Plain functions run in the main thread, one at a time; asynchronous ones in the loop of a thread of its own, which is
only there when there are some. A class is asynchronous when a method of it is, and then all of its methods run there.
"""

from __future__ import annotations

import asyncio
import os
import threading
import traceback
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

from rljob_worker.sandbox.calls.loading import CallRefused, LoadedTarget, load_targets
from rljob_worker.sandbox.calls.outcomes import CallOutcome, failure, raised, success
from rljob_worker.sandbox.guardian.framing import Message, Results, receive_message

Loaded = tuple[dict[str, LoadedTarget], dict[str, str]]
"""Targets that can be called, and why the others cannot, by name."""


class CallServer:
    """Loaded targets, and the objects of sessions."""

    def __init__(self, targets: dict[str, LoadedTarget], results: Results) -> None:
        self._targets = targets
        self._results = results
        self._objects: dict[tuple[str, str], Any] = {}

    def is_asynchronous(self, call: Message) -> bool:
        return self._targets[call["target"]].asynchronous

    def run(self, call: Message) -> None:
        """Call a plain function and send its outcome."""
        try:
            value = self._start(call)
        except CallRefused as error:
            return self._send(call, failure("Refused", str(error)))
        except BaseException as error:  # user code: whatever it raises is an answer
            return self._send(call, raised(error))
        self._send(call, success(value, call["output"]))

    async def run_in_loop(self, call: Message) -> None:
        """Call an asynchronous function, which is cancelled at its limit. One that refuses to end is left behind."""
        task = asyncio.ensure_future(self._started_in_loop(call))
        done, _ = await asyncio.wait({task}, timeout=call["limit"])
        if not done:
            task.cancel()
            return self._send(call, failure("TimedOut", f"took longer than {call['limit']:g} s"))
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if isinstance(error, CallRefused):
            return self._send(call, failure("Refused", str(error)))
        self._send(call, success(task.result(), call["output"]) if error is None else raised(error))

    async def _started_in_loop(self, call: Message) -> Any:
        try:
            value = self._start(call)
            return await value if asyncio.iscoroutine(value) or asyncio.isfuture(value) else value
        except (SystemExit, KeyboardInterrupt) as error:  # they would end the loop
            raise RuntimeError(f"{type(error).__name__}: {error}") from error

    def _start(self, call: Message) -> Any:
        """What the function returns: its value, or a coroutine."""
        target, place = self._targets[call["target"]], (call["session"], call["target"])
        if call.get("end"):
            ended = self._objects.pop(place, None)
            close = getattr(ended, "close", None)
            return close() if callable(close) else None
        if not target.is_class:
            return target.call(target.value, call["method"], call["arguments"], call["key"])
        method = target.method_name(call["method"])
        if place not in self._objects:
            self._objects[place] = target.value(**target.options)
        return target.call(getattr(self._objects[place], method), method, call["arguments"], call["key"])

    def _send(self, call: Message, outcome: CallOutcome) -> None:
        self._results.send_text(outcome.text(call["call"]))


def serve(requests: int, results: Results) -> None:
    """Load the targets, then answer calls until the worker closes the pipe."""
    if (hello := receive_message(requests)) is not None:
        _answer(load_targets(hello["targets"]), requests, results)


def load(requests: int, results: Results) -> Callable[[int, Results], None]:
    """Load the targets, for copies of this process; the `serve` of a copy."""
    hello = receive_message(requests)
    loaded = load_targets({} if hello is None else hello["targets"])
    _report(loaded, results)

    def serve_copy(requests: int, results: Results) -> None:
        if receive_message(requests) is not None:  # the same targets
            _answer(loaded, requests, results)

    return serve_copy


def _report(loaded: Loaded, results: Results) -> None:
    targets, refused = loaded
    results.send({"ready": {name: target.asynchronous for name, target in targets.items()}, "refused": refused})


def _answer(loaded: Loaded, requests: int, results: Results) -> None:
    targets, _ = loaded
    server = CallServer(targets, results)
    _report(loaded, results)
    is_any_asynchronous = any(target.asynchronous for target in targets.values())
    for call in _plain_calls(server, requests) if is_any_asynchronous else _messages(requests):
        server.run(call)


def _messages(requests: int) -> Iterator[Message]:
    while (message := receive_message(requests)) is not None:
        yield message


def _plain_calls(server: CallServer, requests: int) -> Iterator[Message]:
    """Calls for the main thread; a second one receives them all, and runs those that are asynchronous."""
    plain: SimpleQueue[Message | None] = SimpleQueue()
    threading.Thread(target=_run_loop, args=(server, requests, plain), name="calls", daemon=True).start()
    while (message := plain.get()) is not None:
        yield message


def _run_loop(server: CallServer, requests: int, plain: SimpleQueue[Message | None]) -> None:
    try:
        asyncio.run(_receive_in_loop(server, requests, plain))
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    finally:
        plain.put(None)


async def _receive_in_loop(server: CallServer, requests: int, plain: SimpleQueue[Message | None]) -> None:
    """Until the worker closes the pipe."""
    loop, ended, running = asyncio.get_running_loop(), asyncio.Event(), set[asyncio.Task[None]]()

    def receive() -> None:
        message = receive_message(requests)
        if message is None:
            loop.remove_reader(requests)
            ended.set()
        elif server.is_asynchronous(message):
            running.add(task := loop.create_task(server.run_in_loop(message)))
            task.add_done_callback(running.discard)
        else:
            plain.put(message)

    loop.add_reader(requests, receive)
    await ended.wait()
