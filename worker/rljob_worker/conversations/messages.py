"""What is said in a conversation, and how it becomes tokens.

Messages are dictionaries as chat templates take them: `role`, `content`, and where there are some `tool_calls`,
`tool_call_id` and `name`. Content is a text, or a list of parts of which some are pictures (see `picture_parts`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from rljob_worker.batch import Indices

if TYPE_CHECKING:
    from rljob_worker.conversations.history import History

Message = dict[str, Any]
Schema = dict[str, Any]
"""A function as chat templates take it: `{"type": "function", "function": {"name", "description", "parameters"}}`."""
FinishReason = Literal["Stop", "Length"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that an assistant asks for."""

    id: str
    """`call_<turn>_<n>`, both from 0."""
    name: str
    arguments: dict[str, Any] | None
    """None where they are not a JSON object."""
    raw: str
    """What the assistant wrote."""
    fault: str | None
    """What is wrong with it, for the model to read; None where nothing is."""

    def as_part(self) -> dict[str, Any]:
        """An entry of `tool_calls` in a message."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments or {}}}


@dataclass(frozen=True, slots=True)
class AssistantMessage:
    """What the policy said in a turn."""

    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    """What it thought before, where its template keeps that apart."""
    tokens: Indices | None = None
    """int64 [tokens], as they were sampled; None where nothing was sampled."""
    finish_reason: FinishReason = "Stop"
    """`Length`: it was cut off."""

    def as_message(self) -> Message:
        """As chat templates take it."""
        message: Message = {"role": "assistant", "content": self.content}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        # one that could not be read is a part of the content, where a template writes it as the model did
        if calls := [call.as_part() for call in self.tool_calls if call.arguments is not None]:
            message["tool_calls"] = calls
        return message


class BegunTurn(Protocol):
    """Reads one turn while it is sampled; what it has read once is not read again."""

    def read(self, token_ids: Indices) -> tuple[str, str]:
        """Thought and words, as far as nothing that follows changes them. token_ids: int64 [tokens], all of the turn
        so far, of which the first are those of the calls before."""
        ...


class Renderer(Protocol):
    """Messages to tokens and back, with the chat template of one model."""

    def opening(self, messages: Sequence[Message], tools: Sequence[Schema] | None = None) -> Indices:
        """int64 [tokens] of a conversation that begins with these messages, up to where the assistant goes on."""
        ...

    def following(
        self,
        before: History,
        new: Sequence[Message],
        tools: Sequence[Schema] | None = None,
        *,
        is_closed: bool = True,
    ) -> Indices | None:
        """int64 [tokens] that come behind the sampled tokens of the last turn, up to where the assistant goes on.

        before: the conversation, which ends with what the assistant said.   is_closed: whether the last sampled token
        ends its turn; what ends it comes first, too, where it does not. None where the template now writes what was
        said before in another way, so that a new row has to open with all of it.
        """
        ...

    def parse(self, token_ids: Indices, *, turn: int = 0, tools: Sequence[Schema] | None = None) -> AssistantMessage:
        """What the policy said with these tokens; `finish_reason` is Stop where the last of them ends its turn."""
        ...

    def begin_turn(self) -> BegunTurn:
        """What reads a turn while it is sampled."""
        ...

    def require_tokens(self, token_ids: Indices, begin: int = 0) -> None:
        """Raises BadData for a token that the model has not, and one that stands for a part of a picture. token_ids:
        int64 [tokens] of a text, from place `begin` on."""
        ...

    def texts_of(self, token_ids: Indices) -> list[bytes]:
        """What each token says, in UTF-8; of a part of a character a part."""
        ...
