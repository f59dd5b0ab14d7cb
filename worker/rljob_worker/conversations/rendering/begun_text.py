"""What a turn says that is not over: beginnings of what `parse` makes of the whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rljob_worker.batch import Indices
from rljob_worker.conversations.rendering.tool_calls import ToolFormat

THINK, THOUGHT = "<think>", "</think>"
CALL = "<tool_call>"


@dataclass(frozen=True, slots=True)
class TurnForm:
    """How a chat template writes turns of the assistant."""

    opens_thought: bool
    """Whether the prompt ends in a thought."""
    reads_reasoning: bool
    """Whether thoughts are apart from words; they are a part of them otherwise."""
    tool_format: ToolFormat | None


class ReadTurn:
    """A `messages.BegunTurn`."""

    def __init__(self, decode: Callable[[int], str], form: TurnForm) -> None:
        """decode: what each token adds to the text."""
        self._decode, self._form = decode, form
        self._text, self._num_read = "", 0

    def read(self, token_ids: Indices) -> tuple[str, str]:
        """As `messages.BegunTurn`."""
        self._text += "".join(map(self._decode, token_ids[self._num_read :].tolist()))
        self._num_read = max(self._num_read, len(token_ids))
        return begun_parts(self._text, self._form)


def begun_parts(text: str, form: TurnForm) -> tuple[str, str]:
    """Thought and words."""
    tool_format = form.tool_format
    if not form.reads_reasoning:
        return "", begun_words(text, tool_format)
    bare = text.lstrip()
    begins = bare.startswith(THINK)
    if not begins and THINK.startswith(bare):
        return "", ""
    if not begins and not form.opens_thought:
        return "", begun_words(text, tool_format)
    thought, end, said = text.partition(THOUGHT)
    if not end:
        return without_beginning_of(THOUGHT, bare.removeprefix(THINK)).strip("\n"), ""
    return thought.lstrip().removeprefix(THINK).strip("\n"), begun_words(said.lstrip("\n"), tool_format)


def begun_words(text: str, tool_format: ToolFormat | None) -> str:
    """Words before the first call of a tool, or what may become one."""
    if tool_format is None:
        return text
    if tool_format == "Llama":  # all of a turn is a call, or none of it
        bare = text.lstrip()
        return "" if not bare or bare[0] in "{<" else text
    before, call, _ = text.partition(CALL)
    return (before if call else without_beginning_of(CALL, text)).rstrip()


def without_beginning_of(mark: str, text: str) -> str:
    """Text without what may be the beginning of a mark at its end."""
    for length in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:length]):
            return text[:-length]
    return text
