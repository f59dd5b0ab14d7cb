"""A process of simulators: makes environments, one for each slot, and answers one call after another.

    <- {"settings": {…}, "slots": 4}                                                    once
    -> {"ready": {"low": [-1.0, null], "high": […]}}  |  {"refused": "why"}             null: no bound
    <- {"call": 1, "slot": 0, "reset": {"seed": 7, "options": {"task": "push"}}}
    <- {"call": 2, "slot": 0, "steps": 4, "dimensions": 7, "records": false}
    <- {"call": 3, "tasks": true}
    -> {"call": 2}  |  {"call": 2, "error": ["raised", "ValueError: …"]}  |  {"call": 3, "tasks": […]}

Actions, and what they came to, lie in the slot's part of the shared memory.
"""

from __future__ import annotations

import contextlib
import math
import os

import numpy as np
from numpy.typing import NDArray

from rljob_worker.embodied.simulators.environment import SimulatedEnvironment
from rljob_worker.embodied.simulators.settings import SimulatorFailed, SimulatorSettings
from rljob_worker.embodied.simulators.shared_memory import ObservationMemory
from rljob_worker.errors import InvalidJob
from rljob_worker.sandbox.calls.outcomes import error_text
from rljob_worker.sandbox.guardian.beginning import MEMORY
from rljob_worker.sandbox.guardian.framing import Message, Results, receive_message

_FIRST_SLOT = 0


class SimulatorServer:
    """The environments of a process, made when they are first asked for."""

    def __init__(self, settings: SimulatorSettings, memory: ObservationMemory) -> None:
        """Raises InvalidJob: no environment can be made."""
        self._settings, self._memory = settings, memory
        self._environments: dict[int, SimulatedEnvironment] = {}
        self.bounds = self._environment(_FIRST_SLOT).bounds

    def answer(self, call: Message) -> Message:
        """Do what is asked; errors are answers."""
        outcome: Message
        try:
            return {"call": call["call"], **self._answered(call)}
        except InvalidJob as error:
            outcome = {"refused": str(error)}
        except SimulatorFailed as error:
            outcome = {"error": [error.cause, str(error)]}
        except BaseException as error:  # user code: whatever it raises is an answer
            outcome = {"error": ["raised", error_text(error)]}
        self._drop(call.get("slot", _FIRST_SLOT))
        return {"call": call["call"], **outcome}

    def close(self) -> None:
        """End what the environments hold."""
        for environment in self._environments.values():
            environment.close()

    def _answered(self, call: Message) -> Message:
        if call.get("tasks"):
            return {"tasks": self._environment(_FIRST_SLOT).tasks()}
        environment = self._environment(call["slot"])
        if "reset" in call:
            frame = environment.reset(call["reset"]["seed"], call["reset"]["options"])
        else:
            actions = self._memory.actions(call["slot"], call["steps"], call["dimensions"])
            frame = environment.step(actions, records=call["records"])
        self._memory.write(call["slot"], frame)
        return {}

    def _drop(self, slot: int) -> None:
        """End an environment that went wrong; the slot's next episode has a new one."""
        environment = self._environments.pop(slot, None)
        if environment is not None:
            with contextlib.suppress(Exception):
                environment.close()

    def _environment(self, slot: int) -> SimulatedEnvironment:
        if slot not in self._environments:
            self._environments[slot] = SimulatedEnvironment.make(self._settings)
        return self._environments[slot]


def serve(requests: int, results: Results) -> None:
    """Make the first environment, then answer calls until the worker closes the pipe."""
    hello = receive_message(requests)
    if hello is None:
        return
    memory = ObservationMemory(MEMORY, hello["slots"])
    os.close(MEMORY)
    try:
        server = SimulatorServer(SimulatorSettings.from_json(hello["settings"]), memory)
    except InvalidJob as error:
        results.send({"refused": str(error)})
        return
    results.send({"ready": {"low": _as_json(server.bounds.low), "high": _as_json(server.bounds.high)}})
    while (call := receive_message(requests)) is not None:
        results.send(server.answer(call))
    server.close()


def _as_json(bounds: NDArray[np.float64]) -> list[float | None]:
    return [bound if math.isfinite(bound) else None for bound in bounds.tolist()]
