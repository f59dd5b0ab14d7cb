"""What services are asked, as JSON that has been looked at. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Row = Mapping[str, Any]


class BadRequest(ValueError):
    """Answered with 400: what was asked is not a question for this service."""


def rows_of_body(body: Any) -> list[Row]:
    """The rows of `{"rows": [{"prompt": "...", "response": "..."}, ...]}`. Raises BadRequest."""
    rows = body.get("rows") if isinstance(body, Mapping) else None
    if not isinstance(rows, list) or not rows:
        raise BadRequest('a request is {"rows": [...]} with one row or more')
    for i, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise BadRequest(f"rows[{i}] is not an object")
        for name in ("prompt", "response"):
            if not isinstance(row.get(name), str):
                raise BadRequest(f"rows[{i}].{name} is not text")
    return rows


def texts_of(body: Any) -> list[str]:
    """The texts of `{"input": "..."}` or `{"input": ["...", ...]}`, as OpenAI's embeddings have it. Raises
    BadRequest."""
    result = body.get("input") if isinstance(body, Mapping) else None
    texts = [result] if isinstance(result, str) else result
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise BadRequest("input is a text, or a list of texts")
    return texts


def messages_of(body: Any) -> list[dict[str, str]]:
    """The messages of `{"messages": [{"role": "user", "content": "..."}]}`, as OpenAI's chat completions have it.
    Raises BadRequest."""
    result = body.get("messages") if isinstance(body, Mapping) else None
    if not isinstance(result, list) or not result:
        raise BadRequest("messages is a list of one message or more")
    for i, message in enumerate(result):
        for name in ("role", "content"):
            if not isinstance(message, Mapping) or not isinstance(message.get(name), str):
                raise BadRequest(f"messages[{i}].{name} is not text")
    return [{"role": message["role"], "content": message["content"]} for message in result]


def fill_template(template: str, row: Row) -> str:
    """The template with `{name}` replaced by what the row has of that name; other braces stay as they are.

    "{prompt} -> {response}" with {"prompt": "2+2", "response": "{4}"} -> "2+2 -> {4}"
    """
    parts, rest = [], template
    while rest:
        before, brace, after = rest.partition("{")
        name, end, beyond = after.partition("}")
        if brace and end and name in row:
            parts += [before, str(row[name])]
            rest = beyond
        else:
            parts += [before, brace]
            rest = after
    return "".join(parts)
