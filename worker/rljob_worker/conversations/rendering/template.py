"""A model's chat template: what it reads, what it writes after a turn of the assistant, and whether it keeps history.

A template keeps history where a conversation with more messages begins with everything that was written before. Some do
so for what tools answer and not for what a user says: Qwen3 drops the thoughts of earlier turns. Which it does depends
on the kinds of messages and not on their number, so that it is tried once for all conversations of one shape, with
words of our own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2
import jinja2.meta

from rljob_worker.conversations.history import History, TurnKind
from rljob_worker.errors import BadData, InvalidJob

Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]] | None

ANSWER, THOUGHT, NAME = "rljob5b3answer", "rljob5b3thought", "rljob5b3name"
"""Words that no template has: where they stand in a rendered conversation shows what became of a message."""
PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": NAME,
        "description": "n",
        "parameters": {"type": "object", "properties": {}, "required": []},
    },
}
_USER = {"role": "user", "content": "u"}


@dataclass(frozen=True, slots=True)
class ConversationShape:
    """What decides whether a template keeps history."""

    has_system: bool
    has_tools: bool
    turns: tuple[TurnKind, ...]
    """Kinds of assistant messages since the last user message, without the last turn."""
    last: TurnKind
    new: tuple[str, ...]
    """Roles of the new messages, two where there are more in succession."""


class ChatTemplate:
    """Renders conversations as text. Raises InvalidJob for a tokenizer without a template."""

    def __init__(self, tokenizer: Any, arguments: Mapping[str, Any] | None = None) -> None:
        """arguments: what the template is given besides, `models.chatTemplate` of a job."""
        if tokenizer.chat_template is None:
            raise InvalidJob(
                f"the model at {tokenizer.name_or_path!r} has no chat template, which a conversation needs: take an "
                "instruction-tuned model, or put a chat_template.jinja into the model's directory"
            )
        self._tokenizer, self._arguments = tokenizer, dict(arguments or {})
        self.model = str(tokenizer.name_or_path)
        self.text = str(tokenizer.get_chat_template(tools=[PROBE_TOOL]))
        self.reads = _variables(self.text)
        """Names of what the template is given that it uses."""
        self._kept: dict[ConversationShape, bool] = {}

    @property
    def reads_reasoning(self) -> bool:
        """Whether thoughts are a field of a message rather than a part of its text."""
        return "reasoning_content" in self.text

    def render(self, messages: Messages, tools: Tools, *, asks: bool = True) -> str:
        """The conversation as text. asks: with the beginning of the assistant's next turn. Raises BadData for messages
        that the template refuses."""
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    list(messages),
                    tools=list(tools) if tools else None,
                    tokenize=False,
                    add_generation_prompt=asks,
                    **self._arguments,
                )
            )
        except (jinja2.TemplateError, TypeError, KeyError) as error:
            raise BadData(f"the chat template of {self.model!r} refuses the messages: {error}") from error

    def require_tools(self) -> None:
        """Raises InvalidJob for a template that does not show tools, or what they answer, to the model."""
        if "tools" not in self.reads:
            raise InvalidJob(
                f"the chat template of {self.model!r} has no tools: take a model whose template reads `tools`, or a "
                "conversation without tools"
            )
        answer = {"role": "tool", "name": NAME, "tool_call_id": "call_0_0", "content": ANSWER}
        try:
            text = self.render([_USER, _turn(TurnKind(False, False, True), 0, False), answer], [PROBE_TOOL])
        except BadData as error:
            raise InvalidJob(f"a conversation with tools is impossible: {error}") from error
        if ANSWER not in text:
            raise InvalidJob(
                f"the chat template of {self.model!r} does not show what tools answer, messages of the role tool: take "
                "a model whose template does, or a conversation without tools"
            )

    def continuation(self, new: Messages, has_tools: bool) -> str:
        """What is written after an assistant's words when these messages follow: the end of the turn first."""
        window = [_USER, {"role": "assistant", "content": ANSWER}, *new]
        return self.render(window, [PROBE_TOOL] if has_tools else None).partition(ANSWER)[2]

    def keeps_history(self, before: History, new: Messages, has_tools: bool) -> bool:
        """Whether a rendering of all messages begins with what was rendered and said before.

        before: with the assistant's turn at its end.   new: what follows it.
        """
        shape = ConversationShape(before.has_system, has_tools, *before.kinds(), _roles(new))
        if shape not in self._kept:
            self._kept[shape] = self._try(shape)
        return self._kept[shape]

    def _try(self, shape: ConversationShape) -> bool:
        before, new = _example(shape, self.reads_reasoning)
        tools = [PROBE_TOOL] if shape.has_tools else None
        try:
            prompt = self.render(before[:-1], tools)
            whole = self.render([*before, *new], tools)
            following = self.continuation(new, shape.has_tools)
        except BadData:
            return False
        if not following or not whole.startswith(prompt) or not whole.endswith(following):
            return False
        return _is_as_said(whole[len(prompt) : len(whole) - len(following)], shape.last)


def _roles(new: Messages) -> tuple[str, ...]:
    roles: list[str] = []
    for message in new:
        if roles[-2:] != [message["role"]] * 2:
            roles.append(message["role"])
    return tuple(roles)


def _example(shape: ConversationShape, has_field: bool) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A conversation of that shape, up to the last turn and after it. has_field: whether messages have thoughts in a
    field of their own."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": "s"}] if shape.has_system else []
    # more than `continuation` renders, so that a difference is seen
    messages += [_USER, {"role": "assistant", "content": "a"}, _USER]
    for place, kind in enumerate(shape.turns):
        messages += [_turn(kind, place, has_field), _answer("tool", place)]
    messages.append(_turn(shape.last, len(shape.turns), has_field))
    return messages, [_answer(role, len(shape.turns)) for role in shape.new]


def _turn(kind: TurnKind, place: int, has_field: bool) -> dict[str, Any]:
    content = ANSWER if kind.has_content else ""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if kind.has_thought:
        thought = {"reasoning_content": THOUGHT}
        message |= thought if has_field else {"content": f"<think>\n{THOUGHT}\n</think>\n\n{content}"}
    if kind.has_calls:
        call = {"name": NAME, "arguments": {}}
        message["tool_calls"] = [{"id": f"call_{place}_0", "type": "function", "function": call}]
    return message


def _answer(role: str, place: int) -> dict[str, Any]:
    message = {"role": role, "content": "n"}
    return message | ({"name": NAME, "tool_call_id": f"call_{place}_0"} if role == "tool" else {})


def _is_as_said(turn: str, kind: TurnKind) -> bool:
    """Whether a turn in a rendered conversation has all that it was given, and no thought that it was not."""
    wanted = [
        word
        for word, is_wanted in ((THOUGHT, kind.has_thought), (ANSWER, kind.has_content), (NAME, kind.has_calls))
        if is_wanted
    ]
    places = [turn.find(word) for word in wanted]
    if -1 in places or places != sorted(places):
        return False
    if wanted and wanted[0] == ANSWER:
        return places[0] == 0
    return kind.has_thought or "</think>" not in turn


def _variables(template: str) -> frozenset[str]:
    # the block in which templates mark what an assistant said is an extension of transformers
    plain = re.sub(r"\{%-?\s*(end)?generation\s*-?%\}", "", template)
    environment = jinja2.Environment(extensions=["jinja2.ext.loopcontrols"])
    return frozenset(jinja2.meta.find_undeclared_variables(environment.parse(plain)))
