"""A conversation in which the policy calls tools: until it says something without a call, or its turns are over.

What goes wrong is for the model to read, and counted: a call that is not JSON, an unknown tool, arguments that break
the schema, a tool that raises or whose answer is not JSON, one that takes too long or too much memory where its
`onLimit` is Answer. A tool whose process dies, or that exceeds a limit with `onLimit: Fail`, costs the trajectory.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rljob_worker.conversations.messages import Message, ToolCall
from rljob_worker.conversations.picture_parts import is_content
from rljob_worker.conversations.targets.schema import schema_fault

if TYPE_CHECKING:
    from rljob_worker.conversations.policy import Policy
    from rljob_worker.conversations.task import Task
    from rljob_worker.conversations.world import ToolHandle, World

LIMITS = frozenset({"TimedOut", "OutOfMemory"})
"""Causes of errors of calls that were ended because they took too much."""
FIGURES = ("tool_calls", "tool_call_faults", "tool_errors", "tool_limits")
"""Figures of a trajectory: calls asked for, calls that could not be made, calls that a tool did not answer, and those
of them that took too long or too much memory."""


async def tools(task: Task, policy: Policy, world: World) -> None:
    """Play it. Parallel calls of a turn are made at once and answered in their order."""
    counts: Counter[str] = Counter()
    schemas = [handle.schema for handle in world.tools.values()]
    try:
        message = await policy.chat(None, tools=schemas)
        while message.tool_calls and message.finish_reason == "Stop":
            counts["tool_calls"] += len(message.tool_calls)
            if policy.is_over:
                break
            message = await policy.chat(await answers_of(world, message.tool_calls, counts), tools=schemas)
    finally:
        for name in FIGURES:
            world.metric(name, counts[name])


async def answers_of(world: World, calls: Sequence[ToolCall], counts: Counter[str]) -> list[Message]:
    """Messages that answer calls, made at once. Raises what the first of them does once all of them are over."""
    made = (answer(world, call, counts) for call in calls)
    results = await asyncio.gather(*made, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]


async def answer(world: World, call: ToolCall, counts: Counter[str] | None = None) -> Message:
    """The message with which a tool answers a call; an error is a text that says what went wrong. Raises
    TrajectoryFailed for an error that costs the trajectory."""
    counts = Counter() if counts is None else counts
    fault = call_fault(world.tools, call)
    if fault is not None:
        counts["tool_call_faults"] += 1
        return answer_message(call, f"error: {fault}")
    result = await world.call(call.name, call.arguments)
    if result.error is None:
        return answer_message(call, answer_content(result.value))
    counts["tool_errors"] += 1
    counts["tool_limits"] += result.error.cause in LIMITS
    if result.error.cause == "Died" or (result.error.cause in LIMITS and not world.tools[call.name].answers_limits):
        world.fail(f"tool_{result.error.cause}", f"tool {call.name}: {result.error.message}")
    return answer_message(call, f"error: {result.error.message}")


def call_fault(tools: Mapping[str, ToolHandle], call: ToolCall) -> str | None:
    """Why a call cannot be made, for the model to read; None where it can."""
    if call.fault is not None or call.arguments is None:
        return call.fault or "the arguments are not JSON"
    if call.name not in tools:
        return f"there is no tool {call.name!r}; there are {', '.join(tools) or 'none'}"
    return schema_fault(tools[call.name].schema, call.arguments)


def answer_message(call: ToolCall, content: str | list[Any]) -> Message:
    """What chat templates take for the answer to a call."""
    return {"role": "tool", "name": call.name, "tool_call_id": call.id, "content": content}


def answer_content(value: Any) -> str | list[Any]:
    """A value of JSON as the model reads it: text and parts with pictures as they are, all else as JSON."""
    if isinstance(value, str):
        return value
    return list(value) if is_content(value) else json.dumps(value, ensure_ascii=False)
