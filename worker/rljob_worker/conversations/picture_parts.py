"""Pictures in messages: parts of a message's content, as OpenAI's API and chat templates have them.

    {"type": "text", "text": "What is it?"}
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,…"}}     also with the URL itself as `image_url`
    {"type": "image", "image": b"…"}                                           encoded bytes, or a data URL

Pictures travel in what tools and environments answer as data URLs, since answers are JSON. Nothing is fetched.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rljob_worker.errors import BadData
from rljob_worker.vision.picture_tokens import PLACE
from rljob_worker.vision.pictures import read_header

Messages = Sequence[Mapping[str, Any]]

_DATA_URL = re.compile(r"data:image/[a-z0-9.+-]+;base64,", re.IGNORECASE)
_PICTURES = ("image", "image_url")


def is_content(value: Any) -> bool:
    """Whether a value of JSON is the content of a message with at least one picture: a list of parts."""
    if not isinstance(value, list) or not all(isinstance(part, Mapping) for part in value):
        return False
    kinds = [part.get("type") for part in value]
    return any(kind in _PICTURES for kind in kinds) and set(kinds) <= {"text", *_PICTURES}


def content_pictures(content: Any) -> list[bytes]:
    """The encoded pictures of the content of a message, in order. Raises BadData for a part without one."""
    parts = content if isinstance(content, list) else []
    return [_picture(part) for part in parts if isinstance(part, Mapping) and part.get("type") in _PICTURES]


def message_pictures(messages: Messages) -> list[bytes]:
    """The encoded pictures of messages, in order. Raises BadData as `content_pictures` does."""
    return [picture for message in messages for picture in content_pictures(message.get("content"))]


def content_text(content: Any, place: str) -> Any:
    """The content of a message as one text, with `place` for each picture; what has no parts is returned as it is.
    Raises BadData for a part that is neither text nor a picture."""
    return "".join(_text(part, place) for part in content) if isinstance(content, list) else content


def with_pictures(messages: Messages, pictures: Sequence[bytes]) -> list[dict[str, Any]]:
    """Messages of a data set, with the pictures of its row in their places. Raises BadData for more or fewer places
    than pictures."""
    left = iter(pictures)
    result = [{**message, "content": _filled(message.get("content"), left)} for message in messages]
    if next(left, None) is not None:
        raise BadData("a prompt has fewer places for pictures than its row has pictures")
    return result


def _filled(content: Any, pictures: Iterator[bytes]) -> Any:
    """Content whose places are parts with pictures; a text without places stays a text."""
    given = content if isinstance(content, list) else [{"type": "text", "text": content}]
    parts = list[dict[str, Any]]()
    for part in given:
        if part.get("type") in _PICTURES:
            parts.append(_part(pictures))
            continue
        first, *others = str(part.get("text") or "").split(PLACE)
        parts += [{"type": "text", "text": first}] if first else []
        for text in others:
            parts += [_part(pictures), *([{"type": "text", "text": text}] if text else [])]
    return parts if isinstance(content, list) or any(part["type"] == "image" for part in parts) else content


def _part(pictures: Iterator[bytes]) -> dict[str, Any]:
    picture = next(pictures, None)
    if picture is None:
        raise BadData("a prompt has more places for pictures than its row has pictures")
    return {"type": "image", "image": picture}


def _text(part: Any, place: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    if kind not in _PICTURES:
        raise BadData(f"a part of a message has the type {kind!r}; write text, image or image_url")
    return place


def _picture(part: Mapping[str, Any]) -> bytes:
    value = part.get(str(part["type"]))
    url: Any = value.get("url") if isinstance(value, Mapping) else value
    if isinstance(url, bytes | bytearray | memoryview):
        return bytes(url)
    start = _DATA_URL.match(url) if isinstance(url, str) else None
    if start is None:
        raise BadData(
            f"a part of a message has {str(url)[:60]!r} for a picture; write its bytes as a data URL, "
            "data:image/png;base64,…"
        )
    try:
        return base64.b64decode(url[start.end() :], validate=True)
    except binascii.Error as error:
        raise BadData(f"a part of a message has a data URL that is not base64: {error}") from error


def data_url(encoded: bytes, kind: str = "png") -> str:
    """A picture as a value of JSON. kind: png, jpeg, webp, gif or bmp."""
    return f"data:image/{kind};base64,{base64.b64encode(encoded).decode()}"


def as_json(messages: Messages) -> list[dict[str, Any]]:
    """Messages in the form of OpenAI's API, which JSON can hold: pictures are parts of type image_url. Raises BadData
    for a picture whose file has no form that is read."""
    return [
        {**message, "content": [_json_part(part) for part in content]} if isinstance(content, list) else {**message}
        for message in messages
        for content in [message.get("content")]
    ]


def _json_part(part: Mapping[str, Any]) -> dict[str, Any]:
    if part.get("type") not in _PICTURES:
        return dict(part)
    picture = _picture(part)
    url = data_url(picture, read_header(picture).format.lower())
    return {"type": "image_url", "image_url": {"url": url}}
