"""Programs of a job's agents: one for each trajectory, in a confined process, with a key of its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rljob_api.v1alpha1 import ConversationSpec
from rljob_api.v1alpha1.conversation import AgentPoolSpec, ProgramSpec
from rljob_api.vocabulary.quantity import parse_quantity
from rljob_worker.conversations.agents.branch_player import BranchPlayer, unless_failed
from rljob_worker.conversations.agents.policy_endpoint import ServedPolicy, described, endpoint_of
from rljob_worker.conversations.branches import Branches
from rljob_worker.conversations.picture_parts import content_text
from rljob_worker.conversations.task import Task
from rljob_worker.endpoint.calls import TurnPlayer
from rljob_worker.endpoint.task_offers import is_number
from rljob_worker.errors import InvalidJob
from rljob_worker.sandbox.calls.calls import Calls
from rljob_worker.sandbox.targets import Answer, CallLimits, Target

_RUN = "rljob_worker.endpoint.program_process:run_program"
PROGRAM = "program"
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
        self, conversation: ConversationSpec, policy: ServedPolicy, *, place: int = 0, pythonpath: Sequence[str] = ()
    ) -> None:
        """place: of the worker among those of its host."""
        assert conversation.program is not None
        self._conversation, self._program, self._model = conversation, conversation.program, policy.name
        self.endpoint = endpoint_of(conversation, policy, place)
        self._pythonpath = pythonpath
        self._calls: Calls | None = None

    async def open(self) -> None:
        """Start the server, and wait until programs can be started. Raises InvalidJob."""
        await self.endpoint.start()
        program = self._program
        seconds, output = program.timeout_seconds, parse_quantity(program.max_output)
        self._calls = program_calls(
            self._conversation, program, self.endpoint.port, self._pythonpath, seconds=seconds, output=output
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
        running = asyncio.ensure_future(self._calls.call(session, PROGRAM, None, arguments))
        try:
            return await unless_failed(running, player.failure)
        finally:
            running.cancel()
            player.failure.cancel()
            await self._calls.end(session)

    def _arguments(self, task: Task, key: str) -> dict[str, Any]:
        program, url = self._program, self.endpoint.base_url
        variables = {"OPENAI_BASE_URL": url, "OPENAI_API_BASE": url, "OPENAI_API_KEY": key, "RLJOB_MODEL": self._model}
        texts = [text for message in task.messages if (text := content_text(message["content"], ""))]
        places = {"prompt": texts[-1] if texts else "", "model": self._model, "base_url": url}
        return program_arguments(
            program,
            variables,
            places={**task.columns, **places},
            task=described(task),
            output=parse_quantity(program.max_output),
        )


def program_calls(
    conversation: ConversationSpec,
    program: ProgramSpec | AgentPoolSpec,
    port: int,
    pythonpath: Sequence[str],
    *,
    seconds: float,
    output: int,
) -> Calls:
    """Starts programs as the target PROGRAM, with `program_arguments`. port: of the endpoint that they may connect to.
    seconds: that one may take. output: bytes that one may print. Raises InvalidJob."""
    folder = program.working_directory
    processes = program.max_processes + 1  # and the process that starts it
    limits = CallLimits(seconds, parse_quantity(program.memory), processes, output + (1 << 16))
    target = Target(
        _RUN,
        {},
        limits,
        isolated=True,
        readable=(*program.readable, *([] if folder is None else [folder])),
        environment=program.environment_variables,
    )
    return Calls(
        {PROGRAM: target},
        processes=1,
        confinement=conversation.confinement_of(program),
        network=conversation.network_of(program),
        ports=(port,),
        pythonpath=pythonpath,
    )


def program_arguments(
    program: ProgramSpec | AgentPoolSpec,
    variables: Mapping[str, str],
    *,
    places: Mapping[str, str],
    task: Mapping[str, Any],
    output: int,
) -> dict[str, Any]:
    """Those of `endpoint.program_process.run_program`."""
    return {
        "command": list(program.command),
        "variables": {**program.environment, **variables},
        "places": dict(places),
        "task": dict(task),
        "folder": program.working_directory,
        "most_bytes": output,
    }


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
        return ProgramEnd("program_exit", last_words(result))
    return _reported(result["output"])


def last_words(result: Mapping[str, Any]) -> str:
    """How a program ended, and what it printed last."""
    last = (result["errors"].strip() or result["output"].strip())[-SHOWN_CHARACTERS:]
    return f"exit code {result['code']}: {last or 'it printed nothing'}"


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
    if not is_number(reward):
        return ProgramEnd("reward", f"the last line gives the reward {reward!r}, which is not a finite number")
    if not isinstance(metrics, dict) or not all(map(is_number, metrics.values())):
        return ProgramEnd("metric", "the last line has `metrics` that are not finite numbers by name")
    return ProgramEnd(reward=float(reward), metrics={name: float(value) for name, value in metrics.items()})
