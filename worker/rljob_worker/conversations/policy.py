"""The policy as a conversation sees it: messages or tokens in, what was sampled out, every token of it recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rljob_worker.batch import Indices
from rljob_worker.conversations.branches import Branches
from rljob_worker.conversations.history import History
from rljob_worker.conversations.messages import AssistantMessage, FinishReason, Message, Renderer, Schema
from rljob_worker.conversations.picture_parts import message_pictures
from rljob_worker.conversations.row_sampling import Bounds, ConversationOver, Generate, RowSampler, TurnRequest
from rljob_worker.conversations.trajectory import Sampled, TokenRow, Trajectory
from rljob_worker.engines.rollout.requests import Ending

__all__ = ["Agent", "Bounds", "ConversationOver", "Policy", "TurnRequest"]


@dataclass(frozen=True, slots=True)
class Agent:
    """One of a team, with rows of its own in every trajectory."""

    name: str
    place: int
    """Among those of the job."""
    renderer: Renderer | None


class Policy:
    """One trajectory's, or one agent's in it. Its turns come one after another, and those of all agents: a call while
    another one is awaited raises RuntimeError."""

    def __init__(
        self,
        trajectory: Trajectory,
        renderer: Renderer | None,
        bounds: Bounds,
        generate: Generate,
        picture_token: int | None = None,
        agent: Agent | None = None,
    ) -> None:
        """renderer: None for a model without a chat template, of which `chat` asks for one.   picture_token: as in
        `RowSampler`. agent: who acts, in a team."""
        self._trajectory, self._renderer, self._agent = trajectory, renderer, agent
        self._place = 0 if agent is None else agent.place
        self._sampler = RowSampler(trajectory, bounds, generate, picture_token, self._place)
        self._history = History()
        self.messages: list[Message] = self._history.messages
        """The conversation so far. It is the policy's; `chat` adds to it."""
        if agent is None:
            trajectory.messages = self.messages
        self._row: TokenRow | None = None
        """The row of its last turn."""
        self._tools: list[Schema] = []
        self._is_closed = True
        self._has_messages = False
        """Whether the last row is written by the chat template."""

    @property
    def is_over(self) -> bool:
        """Whether there is no room for another turn: out of turns, or of tokens."""
        return self._sampler.is_over

    @property
    def turns_left(self) -> int:
        """Turns that there may be yet."""
        return self._sampler.turns_left

    def branches(self) -> Branches:
        """For agents that send whole conversations: the turns of this trajectory, instead of `chat` and `complete`.
        Raises ValueError for a model without a chat template."""
        if self._renderer is None:
            raise ValueError("the model has no chat template; give it one")
        return Branches(self._trajectory, self._renderer, self._sampler)

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
        if self._row is None and not self.messages and not new:
            new = list(self._trajectory.task.messages)
        schemas = self._tools if tools is None else list(tools)
        row, tokens, pictures = self._continued(self._renderer, new, schemas)
        turn = self._trajectory.num_turns
        sampled = await self._sample(row, tokens, max_tokens, pictures)
        self._tools, self._has_messages = schemas, True
        message = self._renderer.parse(sampled.tokens, turn=turn, tools=schemas or None)
        self._is_closed = message.finish_reason == "Stop"
        self._history.add([*new, message.as_message()])
        if self._agent is not None:
            opening = () if self._trajectory.messages else self._trajectory.task.messages
            self._trajectory.messages += [*opening, message.as_message() | {"agent": self._agent.name}]
        reason: FinishReason = "Length" if sampled.ending == Ending.LENGTH else "Stop"
        return replace(message, tokens=sampled.tokens, finish_reason=reason)

    async def complete(
        self, tokens: ArrayLike | None = None, *, max_tokens: int | None = None, pictures: Sequence[bytes] = ()
    ) -> Indices:
        """Add tokens to the row, and those that the policy samples then: int64 [tokens], what ended them included.

        tokens: what is new; in the first turn None means the task's prompt.   pictures: what they show, encoded. Raises
        ConversationOver as `chat` does, ValueError for what is no list of the model's tokens, and for pictures that it
        does not see.
        """
        new = np.empty(0, np.int64) if tokens is None else _token_ids(tokens)
        if self._row is None and tokens is None:
            new, pictures = self._trajectory.task.prompt_ids, self._trajectory.task.pictures
        sampled = await self._sample(self._row, new, max_tokens, pictures)
        self._has_messages = False
        return sampled.tokens

    async def decide(
        self,
        prompt: Indices,
        pictures: Sequence[bytes] = (),
        state: NDArray[np.float32] | None = None,
        *,
        num_tokens: int,
    ) -> Indices:
        """A decision, which is a row of its own: int64 [num_tokens] that the policy samples behind a prompt.

        prompt: int64 [tokens]. pictures: what it shows, encoded. state: float32 [numbers] that it depends on, too.
        Raises ConversationOver where the trajectory has no room for another row, ValueError for a decision that is cut
        off.
        """
        row = TokenRow(np.asarray(prompt, np.int64), pictures, state=state, agent=self._place)
        sampled = await self._sample(row, np.empty(0, np.int64), num_tokens, is_decision=True)
        if len(sampled) != num_tokens:
            raise ValueError(f"a decision has {num_tokens} tokens, and the policy sampled {len(sampled)}")
        return sampled.tokens

    def acted_on(self, num_tokens: int) -> None:
        """Only so many tokens of the last decision were acted on: the others are no actions and are in no loss."""
        assert self._row is not None
        self._row.num_actions = num_tokens

    def _continued(
        self, renderer: Renderer, new: Sequence[Message], tools: list[Schema]
    ) -> tuple[TokenRow | None, Indices, list[bytes]]:
        """The row that the next turn continues, None for a new one, and the tokens and pictures that are added to
        it."""
        row = self._row
        if row is not None and self._has_messages and tools == self._tools and self._sampler.may_go_on(row):
            tokens = renderer.following(self._history, new, tools or None, is_closed=self._is_closed)
            if tokens is not None:
                return row, tokens, message_pictures(new)
        messages = [*self.messages, *new]
        return None, renderer.opening(messages, tools or None), message_pictures(messages)

    async def _sample(
        self,
        row: TokenRow | None,
        tokens: Indices,
        max_tokens: int | None,
        pictures: Sequence[bytes] = (),
        *,
        is_decision: bool = False,
    ) -> Sampled:
        if self._trajectory.is_busy:
            raise RuntimeError("the policy was asked for a turn while another one is awaited")
        self._trajectory.is_busy = True
        try:
            asked = self._sampler.sample(row, tokens, max_tokens, pictures, is_decision=is_decision)
            self._row, sampled = await asked
            return sampled
        finally:
            self._trajectory.is_busy = False


def _token_ids(tokens: ArrayLike) -> Indices:
    """int64 [tokens]. Raises ValueError for numbers that are not whole, and for rows of them."""
    given = np.asarray(tokens)
    if given.ndim != 1 or (len(given) and given.dtype.kind not in "iu"):
        raise ValueError(f"tokens are a list of whole numbers, not {given.dtype} of shape {given.shape}")
    return given.astype(np.int64)
