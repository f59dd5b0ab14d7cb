"""Bodies of `/v1/chat/completions` as calls: messages and tools in the form that chat templates take."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rljob_worker.endpoint.calls import ChatCall, RequestRefused
from rljob_worker.endpoint.sampling_rules import TOP_LOG_PROBS, SamplingRules

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
Part = dict[str, Any]
TEXTS = ("name", "tool_call_id", "reasoning_content")
"""Fields of messages that are texts, and go on as they are."""


def chat_call(body: Mapping[str, Any], rules: SamplingRules) -> ChatCall:
    """Raises RequestRefused, which names the field."""
    rules.check(body)
    messages = _list(body, "messages")
    if not messages:
        raise RequestRefused("messages is empty", param="messages")
    tools = () if body.get("tool_choice") == "none" else tuple(_tool(i, item) for i, item in enumerate(_tools(body)))
    is_streamed = _flag(body, "stream")
    options = body.get("stream_options")
    return ChatCall(
        messages=[_message(f"messages[{i}]", message) for i, message in enumerate(messages)],
        tools=tools,
        max_tokens=most_tokens(body, "max_completion_tokens", "max_tokens"),
        wants_log_probs=_flag(body, "logprobs"),
        top_log_probs=_top_log_probs(body, rules),
        wants_token_ids=_flag(body, "return_token_ids"),
        is_streamed=is_streamed,
        wants_usage=not is_streamed or (isinstance(options, dict) and options.get("include_usage") is True),
    )


def _top_log_probs(body: Mapping[str, Any], rules: SamplingRules) -> int:
    number = rules.top_log_probs(body.get(TOP_LOG_PROBS), TOP_LOG_PROBS)
    if number and not body.get("logprobs"):
        raise RequestRefused(f"{TOP_LOG_PROBS} is {number}, which needs logprobs: true", param=TOP_LOG_PROBS)
    return number


def most_tokens(body: Mapping[str, Any], *names: str, prefix: str = "") -> int | None:
    """The first of these fields that there is. Raises RequestRefused for what is not a whole number from 1 on."""
    for name in names:
        value = body.get(name)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise RequestRefused(f"{prefix}{name} is {value!r}, not a whole number from 1 on", param=prefix + name)
        return value
    return None


def _tools(body: Mapping[str, Any]) -> list[Any]:
    return [] if body.get("tools") is None else _list(body, "tools")


def _list(body: Mapping[str, Any], name: str) -> list[Any]:
    value = body.get(name)
    if not isinstance(value, list):
        raise RequestRefused(f"{name} is {'missing' if value is None else 'not a list'}", param=name)
    return value


def _flag(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise RequestRefused(f"{name} is {value!r}, not true or false", param=name)
    return bool(value)


def _tool(number: int, tool: Any) -> dict[str, Any]:
    """Without `strict`, which says how it is sampled and is nothing that the model reads."""
    place = f"tools[{number}]"
    if not isinstance(tool, dict) or tool.get("type") != "function" or not isinstance(tool.get("function"), dict):
        raise RequestRefused(f"{place} is not a tool of type function", param=place)
    function = tool["function"]
    if not isinstance(function.get("name"), str) or not function["name"]:
        raise RequestRefused(f"{place}.function.name is not a text", param=f"{place}.function.name")
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    if not isinstance(parameters, dict):
        raise RequestRefused(f"{place}.function.parameters is not an object", param=f"{place}.function.parameters")
    described = {"name": function["name"], "description": str(function.get("description") or "")}
    return {"type": "function", "function": {**described, "parameters": parameters}}


def _message(place: str, message: Any) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise RequestRefused(f"{place} is not an object", param=place)
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise RequestRefused(f"{place}.role is {role!r}; there are {', '.join(ROLES)}", param=f"{place}.role")
    result: dict[str, Any] = {"role": ROLES[role], "content": _content(f"{place}.content", message.get("content"))}
    for name in TEXTS:
        value = message.get(name)
        if value is not None and not isinstance(value, str):
            raise RequestRefused(f"{place}.{name} is not a text", param=f"{place}.{name}")
        if value:
            result[name] = value
    if calls := message.get("tool_calls"):
        if not isinstance(calls, list):
            raise RequestRefused(f"{place}.tool_calls is not a list", param=f"{place}.tool_calls")
        result["tool_calls"] = [_tool_call(f"{place}.tool_calls[{i}]", call) for i, call in enumerate(calls)]
    return result


def _content(place: str, content: Any) -> str | list[Part]:
    """A text, where there are no pictures: parts of text are then lines of one."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise RequestRefused(f"{place} is neither a text nor a list of parts", param=place)
    parts = [_part(f"{place}[{i}]", part) for i, part in enumerate(content)]
    is_text = all(part["type"] == "text" for part in parts)
    return "\n".join(part["text"] for part in parts) if is_text else parts


def _part(place: str, part: Any) -> Part:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in ("text", "input_text", "output_text") and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    if kind == "image_url":
        image = part.get("image_url")
        url = image.get("url") if isinstance(image, dict) else image
        if not isinstance(url, str) or not url.lower().startswith("data:image/"):
            message = f"{place}.image_url is no data URL: write data:image/png;base64,...; nothing is fetched"
            raise RequestRefused(message, param=f"{place}.image_url")
        return {"type": "image_url", "image_url": {"url": url}}
    raise RequestRefused(f"{place} is a part of type {kind!r}; there are text and image_url", param=place)


def _tool_call(place: str, call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RequestRefused(f"{place} is not a call of a function", param=place)
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            arguments = None
    if not isinstance(arguments, dict):
        name = f"{place}.function.arguments"
        raise RequestRefused(f"{name} is not a JSON object", param=name)
    return {
        "id": str(call.get("id") or ""),
        "type": "function",
        "function": {"name": function["name"], "arguments": arguments},
    }
