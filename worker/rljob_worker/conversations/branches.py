"""Whole conversations as an agent sends them, and the rows that they are in: what was said before is never rendered
again where it stands in a row as it was sampled.

A conversation continues the row whose conversation it begins with, word for word as the policy's turns were given out.
One that does not, because the agent has rewritten it or has asked something else behind the same words, opens a row of
the same trajectory. Thoughts that an agent leaves out are no rewriting: few agents send them back.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rljob_worker.batch import Indices
from rljob_worker.conversations.history import History
from rljob_worker.conversations.messages import AssistantMessage, FinishReason, Message, Renderer, Schema
from rljob_worker.conversations.picture_parts import content_pictures, content_text, message_pictures
from rljob_worker.conversations.row_sampling import Hear, RowSampler
from rljob_worker.conversations.trajectory import Sampled, TokenRow, Trajectory
from rljob_worker.engines.rollout.requests import Ending
from rljob_worker.vision.pictures import picture_digest

PICTURE_MARK = "\ufffc"
"""Stands for a picture where messages are compared."""


@dataclass(slots=True, eq=False)
class Branch:
    """A conversation as far as it was played, and its row."""

    row: TokenRow
    messages: list[Message]
    """With what the policy said at their end, its thoughts included."""
    said: list[str]
    """What makes each message the same as one that an agent sends."""
    tools: list[Schema]
    is_closed: bool
    """Whether the last sampled token ends the turn."""


@dataclass(frozen=True, slots=True, eq=False)
class BranchTurn:
    """What the policy said to a conversation."""

    prompt: Indices
    """int64 [tokens] before it."""
    sampled: Sampled
    message: AssistantMessage


class Branches:
    """Those of one trajectory. Turns of different ones may be awaited at once."""

    def __init__(self, trajectory: Trajectory, renderer: Renderer, sampler: RowSampler) -> None:
        self._trajectory, self.renderer, self._sampler = trajectory, renderer, sampler
        self._branches: list[Branch] = []

    @property
    def is_over(self) -> bool:
        """Whether there is no room for another turn."""
        return self._sampler.is_over

    async def reply(
        self,
        messages: Sequence[Message],
        tools: Sequence[Schema] = (),
        max_tokens: int | None = None,
        hear: Hear | None = None,
        top_log_probs: int = 0,
    ) -> BranchTurn:
        """What the policy says to a conversation. hear, top_log_probs: as in `TurnRequest`.

        Raises as `RowSampler.sample`; BadData for messages that the template refuses, InvalidJob for tools that it does
        not show."""
        self._sampler.require_turn()
        said, schemas = [identity_of(message) for message in messages], list(tools)
        branch = self._continued(said, schemas)
        new = list(messages if branch is None else messages[len(branch.messages) :])
        tokens = None if branch is None else self._following(branch, new)
        if branch is None or tokens is None:
            branch, history, new = None, list(messages), list(messages)
            row, tokens = None, self.renderer.opening(history, schemas or None)
        else:
            row, history = branch.row, [*branch.messages, *new]
        turn = self._trajectory.num_turns
        row, sampled = await self._sampler.sample(
            row, tokens, max_tokens, message_pictures(new), hear=hear, top_log_probs=top_log_probs
        )
        message = self.renderer.parse(sampled.tokens, turn=turn, tools=schemas or None)
        self._keep(branch, Branch(row, history, said, schemas, message.finish_reason == "Stop"), message)
        reason: FinishReason = "Length" if sampled.ending == Ending.LENGTH else "Stop"
        prompt = row.sequence()[: -len(sampled)] if len(sampled) else row.sequence()
        return BranchTurn(prompt, sampled, replace(message, tokens=sampled.tokens, finish_reason=reason))

    async def generate(self, tokens: Indices, max_tokens: int | None = None, top_log_probs: int = 0) -> Sampled:
        """What the policy samples behind tokens, which continue the row that they begin with. top_log_probs: as in
        `TurnRequest`. Raises as `RowSampler.sample`; BadData as `Renderer.require_tokens`."""
        row = self._row_before(tokens)
        added = tokens if row is None else tokens[len(row) :]
        self.renderer.require_tokens(added, 0 if row is None else len(row))
        return (await self._sampler.sample(row, added, max_tokens, top_log_probs=top_log_probs))[1]

    def _continued(self, said: Sequence[str], tools: list[Schema]) -> Branch | None:
        """The branch with the longest conversation that a new one begins with."""
        fitting = [
            branch
            for branch in self._branches
            if len(branch.said) < len(said)
            and list(said[: len(branch.said)]) == branch.said
            and branch.tools == tools
            and not self._sampler.is_busy(branch.row)
            and self._sampler.may_go_on(branch.row)
        ]
        return max(fitting, key=lambda branch: len(branch.said), default=None)

    def _following(self, branch: Branch, new: Sequence[Message]) -> Indices | None:
        if any(message["role"] == "assistant" for message in new):
            return None
        before = History(branch.messages)
        return self.renderer.following(before, new, branch.tools or None, is_closed=branch.is_closed)

    def _keep(self, branch: Branch | None, played: Branch, message: AssistantMessage) -> None:
        played.messages.append(message.as_message())
        played.said.append(identity_of(message.as_message()))
        if branch is not None:
            self._branches.remove(branch)
        self._branches.append(played)
        self._trajectory.messages[:] = played.messages

    def _row_before(self, tokens: Indices) -> TokenRow | None:
        fitting = [row for row in self._trajectory.rows if not self._sampler.is_busy(row) and _begins(tokens, row)]
        return max(fitting, key=lambda row: len(row), default=None)


def identity_of(message: Message) -> str:
    """What makes two messages the same: who says what, and calls which functions. Not thoughts, nor ids of calls, nor
    space around an assistant's words, which agents leave out or write anew."""
    content, calls = message.get("content") or "", message.get("tool_calls") or ()
    if isinstance(content, str):
        said: object = content.strip() if message["role"] == "assistant" else content
    else:
        digests = [picture_digest(picture).hex() for picture in content_pictures(content)]
        said = [content_text(content, PICTURE_MARK), digests]
    return json.dumps([message["role"], said, *_functions(calls)], sort_keys=True)


def _functions(calls: Iterable[Message]) -> list[list[object]]:
    return [[call["function"]["name"], call["function"]["arguments"]] for call in calls]


def _begins(tokens: Indices, row: TokenRow) -> bool:
    sequence = row.sequence()
    return len(sequence) <= len(tokens) and np.array_equal(tokens[: len(sequence)], sequence)
