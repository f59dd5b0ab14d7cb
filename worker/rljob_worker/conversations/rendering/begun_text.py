"""What a turn says that is not over: beginnings of what `parse` makes of the whole."""

from __future__ import annotations

from rljob_worker.conversations.rendering.tool_calls import ToolFormat

THINK, THOUGHT = "<think>", "</think>"
CALL = "<tool_call>"


def begun_parts(
    text: str, *, opens_thought: bool, reads_reasoning: bool, tool_format: ToolFormat | None
) -> tuple[str, str]:
    """Thought and words. opens_thought: whether the prompt ends in a thought. reads_reasoning: whether thoughts are
    apart from words; they are a part of them otherwise."""
    text = text.rstrip("\ufffd")  # a character of which the last bytes are to come
    if not reads_reasoning:
        return "", begun_words(text, tool_format)
    bare = text.lstrip()
    begins = bare.startswith(THINK)
    if not begins and THINK.startswith(bare):
        return "", ""
    if not begins and not opens_thought:
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
