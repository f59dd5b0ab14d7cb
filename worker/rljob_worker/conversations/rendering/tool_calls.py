"""Tool calls in what a model writes, in the formats of chat templates.

    Hermes      <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>                     also Qwen 2.5 and 3
    QwenXML     <tool_call><function=add><parameter=a>1</parameter></function></tool_call>        Qwen 3 Coder and later
    Llama       {"name": "add", "parameters": {"a": 1}}                                           all there is in a turn

A call that cannot be read has a fault, a text for the model, and no arguments; what the model wrote stays in the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from rljob_worker.conversations.messages import ToolCall
from rljob_worker.errors import InvalidJob

ToolFormat = Literal["Hermes", "QwenXML", "Llama"]
Tools = Sequence[Mapping[str, Any]]
Parsed = tuple[str, tuple[ToolCall, ...]]
"""What is left of the text, and its calls."""

MAX_SHOWN_CHARACTERS = 200
"""Length of a model's own words in a fault."""
MOST_NESTED = 64
"""Lists and objects within each other in arguments: what is read here is written as JSON in other places, too."""

TOO_DEEP = f"the arguments have more than {MOST_NESTED} lists and objects within each other"

_BLOCK = re.compile(r"<tool_call>\s*(.*?)\s*(</tool_call>|\Z)", re.DOTALL)
_FUNCTION = re.compile(r"<function=([^>\n]*)>(.*?)(</function>|\Z)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\n]*)>\n?(.*?)\n?</parameter>", re.DOTALL)
_LLAMA_BEGINS = re.compile(r'\s*(<\|python_tag\|>\s*)?\{\s*"(name|type)"\s*:')
_EXAMPLES: Mapping[ToolFormat, str] = {
    "Hermes": '<tool_call>{"name": ..., "arguments": {...}}</tool_call>',
    "QwenXML": "<tool_call><function=name><parameter=argument>value</parameter></function></tool_call>",
    "Llama": '{"name": ..., "parameters": {...}}',
}


def format_of(template: str, model: str) -> ToolFormat:
    """The format that a chat template asks for. Raises InvalidJob for one that is none of these."""
    if "<function=" in template:
        return "QwenXML"
    if "<tool_call>" in template:
        return "Hermes"
    if '"parameters"' in template and ("ipython" in template or "python_tag" in template):
        return "Llama"
    raise InvalidJob(
        f"the chat template of {model!r} asks for tool calls in a format that is not read; these are: "
        + ", ".join(f"{name} ({example})" for name, example in _EXAMPLES.items())
    )


def parse_calls(text: str, tool_format: ToolFormat, *, turn: int = 0, tools: Tools | None = None) -> Parsed:
    """Text without the calls that can be read, and all calls in their order, with ids `call_TURN_PLACE`.

    tools: their schemas, by which QwenXML, where every argument is text, knows numbers from strings.
    """
    if tool_format == "Llama":
        return _llama(text, turn)
    blocks = list(_BLOCK.finditer(text))
    calls: list[ToolCall] = []
    for block in blocks:
        if tool_format == "Hermes":
            calls.append(_json_call(block.group(1), _call_id(turn, len(calls)), "arguments", "Hermes"))
        else:
            calls.append(_xml_call(block.group(1), _call_id(turn, len(calls)), tools or ()))
    if not blocks:
        return text, ()
    begins = [0, *(block.end() for block in blocks)]
    ends = [*(block.start() for block in blocks), len(text)]
    parts = [text[begin:end] for begin, end in zip(begins, ends, strict=True)]
    faulty = [block.group() if call.arguments is None else "" for block, call in zip(blocks, calls, strict=True)]
    left = "".join(part + rest for part, rest in zip(parts, [*faulty, ""], strict=True))
    return left.rstrip(), tuple(calls)


def _call_id(turn: int, place: int) -> str:
    return f"call_{turn}_{place}"


def _json_call(raw: str, call_id: str, key: str, tool_format: ToolFormat) -> ToolCall:
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:
        return _faulty(raw, call_id, "", f"the call is not JSON: {error}", tool_format)
    return _call_of(value, raw, call_id, key, tool_format)


def _call_of(value: Any, raw: str, call_id: str, key: str, tool_format: ToolFormat) -> ToolCall:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return _faulty(raw, call_id, "", 'the call is not an object with a "name"', tool_format)
    arguments = value.get(key, value.get("parameters" if key == "arguments" else "arguments", {}))
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            return _faulty(raw, call_id, value["name"], f"the arguments are not JSON: {error}", tool_format)
    if not isinstance(arguments, dict):
        fault = f"the arguments are {json.dumps(arguments)[:MAX_SHOWN_CHARACTERS]}, not an object"
        return _faulty(raw, call_id, value["name"], fault, tool_format)
    if _is_too_deep(arguments):
        return _faulty(raw, call_id, value["name"], TOO_DEEP, tool_format)
    return ToolCall(id=call_id, name=value["name"], arguments=arguments, raw=raw, fault=None)


def _xml_call(raw: str, call_id: str, tools: Tools) -> ToolCall:
    function = _FUNCTION.search(raw)
    if function is None or not function.group(1).strip():
        return _faulty(raw, call_id, "", "the call has no <function=name>", "QwenXML")
    name, body = function.group(1).strip(), function.group(2)
    if body.count("<parameter=") != len(_PARAMETER.findall(body)):
        return _faulty(raw, call_id, name, "a <parameter=...> is not closed", "QwenXML")
    types = _types_of(name, tools)
    arguments = {key.strip(): _xml_value(text, types.get(key.strip())) for key, text in _PARAMETER.findall(body)}
    if _is_too_deep(arguments):
        return _faulty(raw, call_id, name, TOO_DEEP, "QwenXML")
    return ToolCall(id=call_id, name=name, arguments=arguments, raw=raw, fault=None)


def _is_too_deep(arguments: dict[str, Any]) -> bool:
    parts: list[Any] = [arguments]
    for _ in range(MOST_NESTED):
        nested = [part for part in parts if isinstance(part, dict | list)]
        parts = [item for part in nested for item in (part.values() if isinstance(part, dict) else part)]
        if not parts:
            return False
    return True


def _types_of(name: str, tools: Tools) -> dict[str, Any]:
    for tool in tools:
        function = tool.get("function", tool)
        if function.get("name") == name:
            return dict(function.get("parameters", {}).get("properties", {}))
    return {}


def _xml_value(text: str, schema: Mapping[str, Any] | None) -> Any:
    """A string stays one where the schema says so; elsewhere what reads as JSON is that value."""
    if schema is not None and schema.get("type") == "string":
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return {"True": True, "False": False, "None": None}.get(text.strip(), text)


def _llama(text: str, turn: int) -> Parsed:
    """All of the turn is calls, one after another with or without `;` between them, or none of it is."""
    if not _LLAMA_BEGINS.match(text):
        return text, ()
    rest = text.strip().removeprefix("<|python_tag|>").strip()
    decoder, calls = json.JSONDecoder(), list[ToolCall]()
    while rest:
        call_id = _call_id(turn, len(calls))
        try:
            value, end = decoder.raw_decode(rest)
        except (ValueError, RecursionError) as error:
            calls.append(_faulty(rest, call_id, "", f"the call is not JSON: {error}", "Llama"))
            break
        if isinstance(value, dict) and value.get("type") == "function" and isinstance(value.get("function"), dict):
            value = value["function"]
        calls.append(_call_of(value, rest[:end], call_id, "parameters", "Llama"))
        rest = rest[end:].lstrip("; \t\r\n")
    return (text if any(call.arguments is None for call in calls) else ""), tuple(calls)


def _faulty(raw: str, call_id: str, name: str, fault: str, tool_format: ToolFormat) -> ToolCall:
    shown = raw if len(raw) <= MAX_SHOWN_CHARACTERS else raw[:MAX_SHOWN_CHARACTERS] + "..."
    message = f"{fault}; write {_EXAMPLES[tool_format]}, not {shown}"
    return ToolCall(id=call_id, name=name, arguments=None, raw=raw, fault=message)
