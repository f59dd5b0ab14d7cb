"""A conversation so far, and what of it decides whether a chat template writes it again as it was.

Templates treat the assistant's turns behind the last user message in their own ways: Qwen3 keeps the thoughts of these
alone. Their kinds are kept while messages are added, so that a turn costs the same however many were before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from rljob_worker.conversations.messages import Message

_THOUGHT_END = "</think>"


class TurnKind(NamedTuple):
    """What an assistant's message has that a template may treat in its own way."""

    has_thought: bool
    has_content: bool
    has_calls: bool


class History:
    """A list of messages that only grows."""

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        self.messages: list[Message] = []
        self._kinds: dict[TurnKind, None] = {}
        """Those of the assistant's turns since the last user message, without the last turn; the latest comes last."""
        self._last: TurnKind | None = None
        self.add(messages)

    @property
    def has_system(self) -> bool:
        """Whether it begins with a system message."""
        return bool(self.messages) and self.messages[0]["role"] == "system"

    def add(self, messages: Iterable[Message]) -> None:
        """Messages that come next."""
        for message in messages:
            self.messages.append(message)
            if message["role"] == "user":
                self._kinds, self._last = {}, None
            elif message["role"] == "assistant":
                self._add_turn(_kind(message))

    def kinds(self) -> tuple[tuple[TurnKind, ...], TurnKind]:
        """Kinds of the assistant's turns since the last user message but the last turn, the latest first, and that of
        the last turn, with which the conversation ends."""
        assert self._last is not None, "a conversation that ends with an assistant's turn"
        return tuple(reversed(self._kinds)), self._last

    def _add_turn(self, kind: TurnKind) -> None:
        if self._last is not None:
            self._kinds.pop(self._last, None)
            self._kinds[self._last] = None
        self._last = kind


def _kind(message: Mapping[str, Any]) -> TurnKind:
    content = str(message.get("content") or "")
    said = content.rpartition(_THOUGHT_END)[2]
    has_thought = said != content or bool(message.get("reasoning_content"))
    return TurnKind(has_thought, said != "" and not said.isspace(), bool(message.get("tool_calls")))
