"""Calls of an agent as they are once their bodies are read, what answers them, and why one is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

FinishReason = Literal["stop", "length", "tool_calls"]


class RequestRefused(Exception):
    """A call that is not answered, in words for the agent."""

    def __init__(self, message: str, *, status: int = 400, code: str = "invalid_request", param: str | None = None):
        """status: of HTTP. param: the field of the body that is at fault."""
        super().__init__(message)
        self.message, self.status, self.code, self.param = message, status, code, param


@dataclass(frozen=True, slots=True)
class ChatCall:
    """`/v1/chat/completions`."""

    messages: Sequence[dict[str, Any]]
    """The whole conversation, as chat templates take it."""
    tools: Sequence[dict[str, Any]] = ()
    """Schemas of functions."""
    max_tokens: int | None = None
    wants_log_probs: bool = False
    top_log_probs: int = 0
    """How many of the most likely tokens it wants beside each that is sampled."""
    wants_token_ids: bool = False
    """vLLM's `return_token_ids`."""
    is_streamed: bool = False
    wants_usage: bool = True
    """Whether a stream ends with the counts of tokens."""


@dataclass(frozen=True, slots=True)
class TokenCall:
    """`/inference/v1/generate`: tokens in, tokens out."""

    token_ids: Sequence[int]
    max_tokens: int | None = None
    request_id: str | None = None
    wants_log_probs: bool = False
    top_log_probs: int = 0
    """How many of the most likely tokens it wants beside each that is sampled."""


@dataclass(frozen=True, slots=True, eq=False)
class LikelyTokens:
    """The most likely tokens at each place of a turn, most likely first."""

    token_ids: NDArray[np.int32]
    """[tokens, number]."""
    log_probs: NDArray[np.float32]
    """[tokens, number], at the temperature of the job."""
    texts: Mapping[int, bytes] = field(default_factory=dict)
    """What each of these says, in UTF-8, in an answer to a chat."""

    def at(self, place: int) -> list[tuple[int, float]]:
        """Ids and log-probs of one place."""
        return list(zip(self.token_ids[place].tolist(), self.log_probs[place].tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class CalledFunction:
    """A call of a tool that the policy asks for."""

    id: str
    name: str
    arguments: str
    """JSON."""


@dataclass(frozen=True, slots=True)
class PolicyTurn:
    """A turn of the policy."""

    finish_reason: FinishReason
    prompt_ids: Sequence[int]
    token_ids: Sequence[int]
    log_probs: Sequence[float]
    """The log-prob of each token, at the temperature of the job."""
    token_texts: Sequence[bytes] = ()
    """What each token says, in UTF-8, where log-probs were asked for."""
    content: str = ""
    reasoning: str = ""
    tool_calls: Sequence[CalledFunction] = field(default=())
    likely: LikelyTokens | None = None
    """Where they were asked for."""


@dataclass(frozen=True, slots=True)
class PartialTurn:
    """What a turn says that is not over. Nothing of it changes later."""

    reasoning: str = ""
    content: str = ""


Say = Callable[[PartialTurn], None]
"""Called with all that there is of a turn, now and then."""


class TurnPlayer(Protocol):
    """Who answers the calls of one key. Cancelled, a call is as if it had never been made. Raises RequestRefused."""

    async def chat(self, call: ChatCall, say: Say | None = None) -> PolicyTurn:
        """The policy's next message. say: gets what there is of it while it is sampled."""
        ...

    async def generate(self, call: TokenCall) -> PolicyTurn:
        """The policy's next tokens."""
        ...
