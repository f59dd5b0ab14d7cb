"""Encodes a rendered conversation so that added tokens come from the chat template alone.

A tool that answers "<|im_end|>" is text like any other: before rendering, added tokens in the content of messages get a
mark inside, a noncharacter that no message has, and a piece of rendered text with a mark is encoded by a tokenizer that
knows no added token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from rljob_worker.engines.rollout.vocabulary import DecoderStep, bytes_of, decoder_steps
from rljob_worker.errors import InvalidJob

Messages = Sequence[Mapping[str, Any]]

_MARKS = [chr(code) for code in range(0xFDD0, 0xFDEF)]
"""Noncharacters: no text that is meant to be read has one."""
PICTURE = chr(0xFDEF)
"""Stands for a picture in text that is rendered."""
_TEMPLATE_WRITTEN = frozenset({"system", "user", "assistant"})
"""Roles whose text may have added tokens that are not special, such as `<think>`, as prompts of a data set do."""


class WorldText:
    """The added tokens of a tokenizer, and text with and without them."""

    def __init__(self, tokenizer: Any) -> None:
        """tokenizer: one of transformers that stands on `tokenizers`."""
        self._backend: Tokenizer = tokenizer.backend_tokenizer
        added = self._backend.get_added_tokens_decoder()
        self._added_ids = frozenset(added)
        self._strips_right = {token.content for token in added.values() if token.rstrip}
        self._added = _pattern(token.content for token in added.values())
        self._added_in_json = _pattern(_json(token.content)[1:-1] for token in added.values())
        self._special = _pattern(token.content for token in added.values() if token.special)
        self._without_added: Tokenizer | None = None

    def guarded(self, messages: Messages) -> tuple[list[dict[str, Any]], str]:
        """Messages whose added tokens have a mark inside, and the mark; "" where none has any.

        Special tokens are marked in every message, all added ones in what tools answer.
        """
        plain = [dict(message) for message in messages]
        text = _json(plain)
        if self._added_in_json.search(text) is None:  # which nearly all messages end with
            return plain, ""
        patterns = [self._pattern_for(str(message.get("role"))) for message in messages]
        pairs = list(zip(messages, patterns, strict=True))
        if not any(_has(message, pattern) for message, pattern in pairs):
            return plain, ""
        mark = next((mark for mark in _MARKS if mark not in text), "")
        if not mark:
            raise ValueError("a conversation with every noncharacter from U+FDD0 to U+FDEE cannot be rendered")
        return [_marked(message, pattern, mark) for message, pattern in pairs], mark

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, added tokens included."""
        return str(self._backend.decode(ids, skip_special_tokens=False))

    def bytes_of(self, token: int) -> bytes:
        """UTF-8 of what a token says by itself: of a part of a character a part, of an added token its name. Nothing
        for one that there is not."""
        name = self._backend.id_to_token(token)
        if name is not None and token in self._added_ids:
            return name.encode()
        if name is None or self._steps is None:
            return self.decode([token]).encode()
        return bytes_of(name, self._steps)

    @cached_property
    def _steps(self) -> list[DecoderStep] | None:
        """None where tokens are no pieces of a text."""
        try:
            return decoder_steps(self._backend)
        except InvalidJob:
            return None

    def decoded_stream(self) -> Callable[[int], str]:
        """Decodes token ids one after another: what each adds to the text, which is nothing as long as bytes of a
        character are missing."""
        stream = DecodeStream(skip_special_tokens=False)
        return lambda token: stream.step(self._backend, token) or ""

    def first_added(self, text: str) -> re.Match[str] | None:
        """The first added token of a text without marks."""
        return self._added.search(text)

    def encode(self, rendered: str, mark: str = "") -> list[int]:
        """Token ids of a rendered conversation; no special token is added at its ends."""
        rendered = _encodable(rendered)
        if not mark or mark not in rendered:
            return self._ids(self._backend, rendered)
        ids: list[int] = []
        begin, strips = 0, False
        for start, end, token in self._sections(rendered):
            section = rendered[start:end]
            if mark not in section:
                strips = token in self._strips_right
                continue
            ids += self._ids(self._backend, rendered[begin:start])
            ids += self._plain(section.lstrip() if strips else section, mark)
            begin, strips = end, token in self._strips_right
        return ids + self._ids(self._backend, rendered[begin:])

    def _sections(self, rendered: str) -> Iterable[tuple[int, int, str]]:
        """Where the text between two added tokens begins and ends, and the token after it."""
        begin = 0
        for match in self._added.finditer(rendered):
            yield begin, match.start(), match.group()
            begin = match.end()
        yield begin, len(rendered), ""

    def _plain(self, section: str, mark: str) -> list[int]:
        if self._without_added is None:
            state = json.loads(self._backend.to_str())
            self._without_added = Tokenizer.from_str(json.dumps(state | {"added_tokens": [], "post_processor": None}))
        ids = self._ids(self._without_added, section.replace(mark, ""))
        if self._added_ids.isdisjoint(ids):
            return ids
        # a vocabulary that has the token as a word, too: halves of it are none
        return [token for part in section.split(mark) for token in self._ids(self._without_added, part)]

    def _ids(self, tokenizer: Tokenizer, text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False).ids) if text else []

    def _pattern_for(self, role: str) -> re.Pattern[str]:
        return self._special if role in _TEMPLATE_WRITTEN else self._added


def _pattern(contents: Iterable[str]) -> re.Pattern[str]:
    """Matches the longest of the contents; nothing where there are none."""
    words = sorted({content for content in contents if content}, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, words)) if words else r"(?!)")


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _has(value: Any, pattern: re.Pattern[str]) -> bool:
    if isinstance(value, str):
        return pattern.search(value) is not None
    if isinstance(value, Mapping):
        return any(_has(item, pattern) for pair in value.items() for item in pair)
    return isinstance(value, list | tuple) and any(_has(item, pattern) for item in value)


def _marked(value: Any, pattern: re.Pattern[str], mark: str) -> Any:
    if isinstance(value, str):
        # between all characters: what is left of a token may begin another one
        return pattern.sub(lambda match: mark.join(match.group()), value)
    if isinstance(value, Mapping):
        return {_marked(key, pattern, mark): _marked(item, pattern, mark) for key, item in value.items()}
    return [_marked(item, pattern, mark) for item in value] if isinstance(value, list | tuple) else value


def _encodable(text: str) -> str:
    """Half surrogate pairs, which JSON can spell, as the replacement character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
