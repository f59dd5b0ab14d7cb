"""Programs of a job's agents: one for each trajectory, in a confined process, with a key of its own."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rljob_api.v1alpha1 import ConversationSpec
from rljob_api.vocabulary.quantity import parse_quantity
from rljob_worker.conversations.agents.branch_player import BranchPlayer
from rljob_worker.conversations.branches import Branches
from rljob_worker.conversations.task import Task
from rljob_worker.endpoint.calls import TurnPlayer
from rljob_worker.endpoint.sampling_rules import SamplingRules
from rljob_worker.endpoint.server import AgentEndpoint, EndpointSettings
from rljob_worker.errors import InvalidJob
from rljob_worker.sandbox.calls.calls import Calls
from rljob_worker.sandbox.targets import Answer, CallLimits, Target

_RUN = "rljob_worker.endpoint.program_process:run_program"
_TARGET = "program"
SHOWN_CHARACTERS = 500
"""How much of what a program printed last is said of one that failed."""


@dataclass(frozen=True, slots=True)
class ProgramEnd:
    """What became of a program."""

    cause: str | None = None
    """Why it counts for nothing, as a word of a metric; None for one that ended well."""
    message: str = ""
    reward: float | None = None
    """The reward that it gave, if it did."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    num_calls: int = 0
    """Calls that were answered."""


class Programs:
    """Those of one worker. For one event loop."""

    def __init__(
        self,
        conversation: ConversationSpec,
        model: str,
        *,
        temperature: float,
        stop: tuple[str, ...] = (),
        stop_token_ids: tuple[int, ...] = (),
        pythonpath: Sequence[str] = (),
    ) -> None:
        """model: the policy's name."""
        assert conversation.program is not None
        self._conversation, self._program, self._model = conversation, conversation.program, model
        spec = conversation.endpoint
        rules = SamplingRules(spec.other_sampling, temperature=temperature, stop=stop, stop_token_ids=stop_token_ids)
        names = tuple(dict.fromkeys([model, *spec.models]))
        self.endpoint = AgentEndpoint(EndpointSettings(names, rules, spec.wait_seconds))
        self._pythonpath = pythonpath
        self._calls: Calls | None = None

    async def open(self) -> None:
        """Start the server, and wait until programs can be started. Raises InvalidJob."""
        await self.endpoint.start()
        program = self._program
        limits = CallLimits(
            program.timeout_seconds,
            parse_quantity(program.memory),
            program.max_processes + 1,  # and the process that starts it
            parse_quantity(program.max_output) + (1 << 16),
        )
        target = Target(
            _RUN, {}, limits, isolated=True, readable=self._readable(), environment=program.environment_variables
        )
        self._calls = Calls(
            {_TARGET: target},
            processes=1,
            confinement=self._conversation.confinement_of(program),
            network=self._conversation.network_of(program),
            ports=(self.endpoint.port,),
            pythonpath=self._pythonpath,
        )
        await self._calls.check()

    async def close(self) -> None:
        """End every program, and the server."""
        if self._calls is not None:
            self._calls.close()
        await self.endpoint.close()

    async def play(self, task: Task, branches: Branches, session: str) -> ProgramEnd:
        """Run a trajectory's program to its end. session: a name that no other trajectory has. Raises what ends a
        trajectory, as `BranchPlayer.failure` has it."""
        player = BranchPlayer(branches)
        turn_player: TurnPlayer = player
        async with self.endpoint.keys.registered(turn_player) as (key, registration):
            answer = await self._run_unless(player, session, self._arguments(task, key))
        end = program_end(answer, parse_quantity(self._program.max_output))
        refusal = registration.last_refusal
        if end.cause is not None and refusal is not None:
            end = ProgramEnd(end.cause, f"{end.message}; its last call was refused: {refusal}")
        return ProgramEnd(end.cause, end.message, end.reward, end.metrics, registration.num_calls)

    async def _run_unless(self, player: BranchPlayer, session: str, arguments: Mapping[str, Any]) -> Answer:
        """The answer of the process, which is ended where the trajectory is."""
        assert self._calls is not None
        running = asyncio.ensure_future(self._calls.call(session, _TARGET, None, arguments))
        try:
            awaited: list[asyncio.Future[Any]] = [running, player.failure]
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            if player.failure.done():
                player.failure.result()
            return running.result()
        finally:
            running.cancel()
            player.failure.cancel()
            await self._calls.end(session)

    def _arguments(self, task: Task, key: str) -> dict[str, Any]:
        program, url = self._program, self.endpoint.base_url
        variables = {"OPENAI_BASE_URL": url, "OPENAI_API_BASE": url, "OPENAI_API_KEY": key, "RLJOB_MODEL": self._model}
        texts = [message["content"] for message in task.messages if isinstance(message["content"], str)]
        places = {"prompt": texts[-1] if texts else "", "model": self._model, "base_url": url}
        described = {
            "messages": list(task.messages),
            "columns": dict(task.columns),
            "seed": task.seed,
            "group": task.group,
            "member": task.member,
        }
        return {
            "command": list(program.command),
            "variables": {**program.environment, **variables},
            "places": {**task.columns, **places},
            "task": described,
            "folder": program.working_directory,
            "most_bytes": parse_quantity(program.max_output),
        }

    def _readable(self) -> tuple[str, ...]:
        folder = self._program.working_directory
        return (*self._program.readable, *([] if folder is None else [folder]))


def program_end(answer: Answer, most_bytes: int) -> ProgramEnd:
    """What became of a program, from what its process answered."""
    if answer.error is not None:
        return ProgramEnd(f"program_{answer.error.cause}", answer.error.message)
    result = answer.value
    if result["why"] is not None:
        raise InvalidJob(f"rollout.conversation.program.command: {result['why']}")
    if result["num_bytes"] > most_bytes:
        message = f"printed more than {most_bytes} bytes; raise rollout.conversation.program.maxOutput"
        return ProgramEnd("program_OutputTooLarge", message)
    if result["code"] != 0:
        last = (result["errors"].strip() or result["output"].strip())[-SHOWN_CHARACTERS:]
        return ProgramEnd("program_exit", f"exit code {result['code']}: {last or 'it printed nothing'}")
    return _reported(result["output"])


def _reported(output: str) -> ProgramEnd:
    """The reward and figures of a last line that is a JSON object with a `reward`."""
    lines = output.strip().splitlines()
    try:
        report = json.loads(lines[-1]) if lines else None
    except (ValueError, RecursionError):
        return ProgramEnd()
    if not isinstance(report, dict) or "reward" not in report:
        return ProgramEnd()
    reward, metrics = report["reward"], report.get("metrics", {})
    if not _is_number(reward):
        return ProgramEnd("reward", f"the last line gives the reward {reward!r}, which is not a finite number")
    if not isinstance(metrics, dict) or not all(map(_is_number, metrics.values())):
        return ProgramEnd("metric", "the last line has `metrics` that are not finite numbers by name")
    return ProgramEnd(reward=float(reward), metrics={name: float(value) for name, value in metrics.items()})


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
