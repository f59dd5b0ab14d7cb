"""From messages to the tokens that a model continues, and from the tokens it sampled to a message.

What was sampled is never tokenized again: a prompt is rendered once, and later only what follows a turn is. Text of the
world has no added tokens, whatever it says.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rljob_worker.conversations.history import History
from rljob_worker.conversations.messages import AssistantMessage, ToolCall
from rljob_worker.conversations.picture_parts import content_text, message_pictures
from rljob_worker.conversations.rendering.begun_text import THINK, THOUGHT, ReadTurn, TurnForm
from rljob_worker.conversations.rendering.template import ANSWER, ChatTemplate
from rljob_worker.conversations.rendering.tool_calls import ToolFormat, format_of, parse_calls
from rljob_worker.conversations.rendering.world_text import PICTURE, WorldText
from rljob_worker.errors import BadData, InvalidJob
from rljob_worker.vision.picture_tokens import PicturePlaces
from rljob_worker.vision.processing import PictureProcessor

Int64 = NDArray[np.int64]
Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]] | None


RECENT_OPENINGS = 16
"""Openings that are remembered: groups begin one after another."""


class ChatRenderer:
    """Renders conversations with one tokenizer and its chat template."""

    def __init__(
        self,
        tokenizer: Any,
        *,
        template_arguments: Mapping[str, Any] | None = None,
        end_tokens: Collection[int] = (),
        pictures: PictureProcessor | None = None,
    ) -> None:
        """template_arguments: `models.chatTemplate` of the job.   end_tokens: ids that end a turn for the engine,
        besides the tokenizer's and the template's own.   pictures: of a model that sees. Raises InvalidJob for a
        tokenizer without a template."""
        self._pictures = pictures
        self._places = None if pictures is None else PicturePlaces(tokenizer, pictures.tokens)
        self._template = ChatTemplate(tokenizer, template_arguments)
        self._world_text = WorldText(tokenizer)
        prompt = self._template.render([{"role": "user", "content": "u"}], None)
        self._opens_thought = prompt.rstrip().endswith(THINK)
        self._turn_end = self._end_of_turn()
        ends = {*end_tokens, tokenizer.eos_token_id, *([] if self._turn_end is None else [self._turn_end[1]])}
        self._ends = frozenset(token for token in ends if token is not None)
        self._format = self._known_format()
        self._num_tokens = max(tokenizer.get_vocab().values()) + 1
        self._openings: dict[str, Int64] = {}
        """By messages and tools: the trajectories of a group begin alike."""

    def require_tools(self) -> None:
        """Raises InvalidJob, which names the model, for a template that shows no tools or asks for calls in a format
        that is not read."""
        if self._format is None:
            self._template.require_tools()
            format_of(self._template.text, self._template.model)

    def opening(self, messages: Messages, tools: Tools = None) -> Int64:
        """Token ids of a conversation up to where the assistant's turn begins. Raises BadData for messages that the
        template refuses, InvalidJob for tools that it does not show."""
        if tools:
            self.require_tools()
        asked = [*self._texts(messages), {"role": "system", "tools": list(tools or ())}]
        key = None if message_pictures(messages) else _exact_json(asked)
        if key is not None and (known := self._openings.get(key)) is not None:
            return known
        shown, mark = self._world_text.guarded(asked)
        opening = self._encoded(self._template.render(shown[:-1], shown[-1]["tools"]), mark, messages)
        if key is not None:
            self._remember(key, opening)
        return opening

    def _remember(self, key: str, opening: Int64) -> None:
        if len(self._openings) == RECENT_OPENINGS:
            del self._openings[next(iter(self._openings))]
        opening.flags.writeable = False
        self._openings[key] = opening

    def following(self, before: History, new: Messages, tools: Tools = None, *, is_closed: bool = True) -> Int64 | None:
        """Token ids to append after the sampled tokens of the last turn; None where the template rewrites history, so
        that a new row opens with `opening` of all messages.

        before: with the assistant's message at its end.   is_closed: whether the last sampled token ends the turn; the
        end is appended, too, where it does not. Raises BadData for messages that the template refuses.
        """
        if self._turn_end is None or not self._template.keeps_history(before, new, bool(tools)):
            return None
        shown, mark = self._world_text.guarded(self._texts(new))
        text = self._template.continuation(shown, bool(tools))
        if not is_closed:
            return self._encoded(text, mark, new)
        begin = text.index(self._turn_end[0])
        # with the end of the turn before it, as a tokenizer sees the whole conversation
        return self._encoded(text[begin:], mark, new)[1:]

    def _texts(self, messages: Messages) -> list[dict[str, Any]]:
        """Messages whose contents are texts, with a mark for each picture."""
        return [
            {**message, "content": content_text(_without_marks(message.get("content")), PICTURE)}
            if "content" in message
            else dict(message)
            for message in messages
        ]

    def _encoded(self, text: str, mark: str, messages: Messages) -> Int64:
        """Token ids of rendered messages, pictures as many as the model sees of them. Raises BadData for a picture that
        cannot be used and for a template that leaves some out, InvalidJob for pictures that the model does not see."""
        pictures = message_pictures(messages)
        if not pictures:
            return np.array(self._world_text.encode(text, mark), np.int64)
        if self._pictures is None or self._places is None:
            raise InvalidJob(
                f"messages have pictures, and the model at {self._template.model!r} is not shown any: take one that "
                "sees, and set data.imagesColumn or rollout.conversation.pictures: true"
            )
        if text.count(PICTURE) != len(pictures):
            raise BadData(
                f"the chat template of {self._template.model!r} shows {text.count(PICTURE)} of {len(pictures)} "
                "pictures; write them into messages whose content it shows as it is"
            )
        num_tokens = [self._pictures.shape(encoded).num_tokens for encoded in pictures]
        ids = np.array(self._world_text.encode(text.replace(PICTURE, self._places.text), mark), np.int64)
        return self._places.expand(ids, num_tokens, "a conversation")

    def parse(self, token_ids: Any, *, turn: int = 0, tools: Tools = None) -> AssistantMessage:
        """The message that sampled tokens say; a template without tools has no calls.

        turn: number of the turn, for the ids of its calls.   tools: their schemas, by which arguments that are written
        as text become numbers.
        """
        ids = [int(token) for token in token_ids]
        length = len(ids)
        while length and ids[length - 1] in self._ends:
            length -= 1
        is_ended = length < len(ids)
        text = self._world_text.decode(ids[:length])
        thought, said = self._split(text)
        content, calls = said, tuple[ToolCall, ...]()
        if self._format is not None:
            content, calls = parse_calls(said, self._format, turn=turn, tools=tools)
        if not self._template.reads_reasoning:
            content, thought = text[: len(text) - len(said)] + content, ""
        return AssistantMessage(
            content=content, tool_calls=calls, reasoning=thought, finish_reason="Stop" if is_ended else "Length"
        )

    def begin_turn(self) -> ReadTurn:
        """What reads a turn while it is sampled."""
        return ReadTurn(
            self._world_text.decoded_stream(),
            TurnForm(self._opens_thought, self._template.reads_reasoning, self._format),
        )

    def require_tokens(self, token_ids: Int64, begin: int = 0) -> None:
        """Raises BadData for a token that the model has not, and one that stands for a part of a picture. token_ids:
        int64 [tokens] of a text, from place `begin` on."""
        unknown = (token_ids < 0) | (token_ids >= self._num_tokens)
        pictured = token_ids == (-1 if self._pictures is None else self._pictures.tokens.pad)
        if not (unknown | pictured).any():
            return
        at = int((unknown | pictured).argmax())
        why = (
            f"the model has tokens from 0 to {self._num_tokens - 1}"
            if unknown[at]
            else "it stands for a part of a picture, and tokens are sent without pictures"
        )
        raise BadData(f"token {token_ids[at]} at place {begin + at}: {why}")

    def texts_of(self, token_ids: Any) -> list[bytes]:
        """What each token says, in UTF-8; of a part of a character a part."""
        return [self._world_text.bytes_of(int(token)) for token in token_ids]

    def _known_format(self) -> ToolFormat | None:
        try:
            self._template.require_tools()
            return format_of(self._template.text, self._template.model)
        except InvalidJob:
            return None

    def _split(self, text: str) -> tuple[str, str]:
        """Thought and words. A thought that does not end is all there is."""
        begins = text.lstrip().startswith(THINK)
        thought, end, said = text.partition(THOUGHT)
        if not end:
            is_thought = begins or self._opens_thought
            return (text.lstrip().removeprefix(THINK).strip("\n"), "") if is_thought else ("", text)
        if not begins and not self._opens_thought:
            return "", text
        return thought.lstrip().removeprefix(THINK).strip("\n"), said.lstrip("\n")

    def _end_of_turn(self) -> tuple[str, int] | None:
        """The token that ends a turn of the assistant, as text and id; None where the template writes none."""
        window = [{"role": "user", "content": "u"}, {"role": "assistant", "content": ANSWER}]
        after = self._template.render(window, None, asks=False).partition(ANSWER)[2]
        match = self._world_text.first_added(after)
        if match is None:
            return None
        (token,) = self._world_text.encode(match.group())
        return match.group(), token


def _exact_json(value: Any) -> str | None:
    """None for what JSON has no words for."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return None


def _without_marks(content: Any) -> Any:
    """Content whose texts have nothing that stands for a picture."""
    if isinstance(content, str):
        return content.replace(PICTURE, "\ufffd")
    if not isinstance(content, list):
        return content
    return [
        {**part, "text": part["text"].replace(PICTURE, "\ufffd")}
        if isinstance(part, Mapping) and isinstance(part.get("text"), str)
        else part
        for part in content
    ]
