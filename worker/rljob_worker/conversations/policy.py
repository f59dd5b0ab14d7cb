"""The policy as a conversation sees it: messages or tokens in, what was sampled out, every token of it recorded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from rljob_worker.batch import Indices
from rljob_worker.conversations.messages import AssistantMessage, FinishReason, Message, Renderer, Schema
from rljob_worker.conversations.trajectory import Sampled, TokenRow, Trajectory
from rljob_worker.engines.rollout.requests import Ending

Generate = Callable[["TurnRequest"], Awaitable[Sampled]]


class ConversationOver(BaseException):
    """The policy was asked for a turn for which there is no room. No `except Exception` of a run function keeps it."""


@dataclass(frozen=True, slots=True, eq=False)
class TurnRequest:
    """A turn that the policy is asked for."""

    row_index: int
    """Which row of its trajectory it continues."""
    turn: int
    """Number in its trajectory, from 0."""
    sequence: Indices
    """int64 [tokens] of the row so far."""
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long a trajectory may get."""

    turns: int
    rows: int
    response_tokens: int
    """Tokens of a row behind its prompt."""
    row_tokens: int
    """Tokens of a row and its prompt."""

    def room_of(self, row: TokenRow) -> int:
        """Tokens that a row may still have."""
        left = self.row_tokens - len(row.prompt)
        return min(self.response_tokens, left) - row.num_response_tokens


class Policy:
    """One trajectory's. Its turns come one after another: a call while another one is awaited raises RuntimeError."""

    def __init__(self, trajectory: Trajectory, renderer: Renderer | None, bounds: Bounds, generate: Generate) -> None:
        """renderer: None for a model without a chat template, of which `chat` asks for one."""
        self._trajectory, self._renderer, self._bounds, self._generate = trajectory, renderer, bounds, generate
        self.messages: list[Message] = trajectory.messages
        """The conversation so far. It is the policy's; `chat` adds to it."""
        self._tools: list[Schema] = []
        self._is_closed = True
        self._has_messages = False
        """Whether the last row is written by the chat template."""
        self._is_over = self._is_busy = False

    @property
    def is_over(self) -> bool:
        """Whether there is no room for another turn: out of turns, or of tokens."""
        return self._is_over or self.turns_left == 0

    @property
    def turns_left(self) -> int:
        """Turns that there may be yet."""
        return self._bounds.turns - self._trajectory.num_turns

    async def chat(
        self,
        messages: Sequence[Message] | None = None,
        *,
        tools: Sequence[Schema] | None = None,
        max_tokens: int | None = None,
    ) -> AssistantMessage:
        """Add messages to the conversation, and what the policy says then.

        messages: what is new; in the first turn None or none means the task's. tools: what it may call; None: as in the
        turn before. max_tokens: of this turn, besides the job's bounds. Raises ConversationOver, which ends the
        trajectory as truncated, where there is no room.
        """
        if self._renderer is None:
            raise ValueError("the model has no chat template; use policy.complete, or give the model one")
        new = list(messages or ())
        if not self._trajectory.num_turns and not self.messages and not new:
            new = list(self._trajectory.task.messages)
        schemas = self._tools if tools is None else list(tools)
        row = self._row_for(self._renderer, new, schemas)
        self.messages += new
        self._tools, self._has_messages = schemas, True
        turn = self._trajectory.num_turns
        sampled = await self._sample(row, max_tokens)
        message = self._renderer.parse(sampled.tokens, turn=turn, tools=schemas or None)
        self._is_closed = message.finish_reason == "Stop"
        self.messages.append(message.as_message())
        reason: FinishReason = "Length" if sampled.ending == Ending.LENGTH else "Stop"
        return replace(message, tokens=sampled.tokens, finish_reason=reason)

    async def complete(self, tokens: ArrayLike | None = None, *, max_tokens: int | None = None) -> Indices:
        """Add tokens to the row, and those that the policy samples then: int64 [tokens], what ended them included.

        tokens: what is new; in the first turn None means the task's prompt. Raises ConversationOver as `chat` does.
        """
        new = np.empty(0, np.int64) if tokens is None else np.asarray(tokens, np.int64)
        if not self._trajectory.rows:
            row = self._open(self._trajectory.task.prompt_ids if tokens is None else new)
        else:
            row = self._extend(self._trajectory.rows[-1], new)
        self._has_messages = False
        return (await self._sample(row, max_tokens)).tokens

    def _row_for(self, renderer: Renderer, new: Sequence[Message], tools: list[Schema]) -> TokenRow:
        """The row that the next turn continues, with all that comes before it."""
        if self._trajectory.rows and self._has_messages and tools == self._tools:
            tokens = renderer.following(self.messages, new, tools or None, is_closed=self._is_closed)
            if tokens is not None:
                return self._extend(self._trajectory.rows[-1], tokens)
        return self._open(renderer.opening([*self.messages, *new], tools or None))

    def _open(self, prompt: Indices) -> TokenRow:
        self._require_turn()
        if not len(prompt):
            raise ValueError("a row begins with one token at least")
        row = TokenRow(prompt)
        if len(self._trajectory.rows) == self._bounds.rows or self._bounds.room_of(row) < 1:
            self._end()
        self._trajectory.rows.append(row)
        return row

    def _extend(self, row: TokenRow, tokens: Indices) -> TokenRow:
        self._require_turn()
        if len(tokens) >= self._bounds.room_of(row):
            self._end()
        row.add_world(tokens)
        return row

    def _require_turn(self) -> None:
        if self._is_busy:
            raise RuntimeError("the policy was asked for a turn while another one is awaited")
        if self.is_over:
            self._end()

    def _end(self) -> None:
        self._is_over = self._trajectory.truncated = True
        raise ConversationOver

    async def _sample(self, row: TokenRow, max_tokens: int | None) -> Sampled:
        room = self._bounds.room_of(row)
        most = room if max_tokens is None else min(room, max_tokens)
        if most < 1:
            raise ValueError(f"max_tokens is {max_tokens}; a turn has one token at least")
        turn = self._trajectory.num_turns
        request = TurnRequest(len(self._trajectory.rows) - 1, turn, row.sequence(), most)
        self._is_busy = True
        try:
            sampled = await self._generate(request)
        finally:
            self._is_busy = False
        row.add_sampled(sampled, turn)
        self._trajectory.num_turns += 1
        if sampled.ending == Ending.LENGTH and most == room:
            self._is_over = self._trajectory.truncated = True
        return sampled
