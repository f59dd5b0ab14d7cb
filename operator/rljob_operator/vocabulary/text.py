"""Text that somebody else wrote, fit for a status, an event and a log line."""

from __future__ import annotations

_CONTROLS = {code: "\ufffd" for code in (*range(32), 127, *range(0x80, 0xA0)) if chr(code) not in "\n\t"}


def clean(text: str, max_length: int) -> str:
    """`text` as valid UTF-8 without control characters, at most `max_length` characters of it; what cannot be UTF-8
    is spelt out, as in `\\ud83d`."""
    valid = text[:max_length].encode("utf-8", "backslashreplace").decode().translate(_CONTROLS)
    is_whole = len(text) <= max_length and len(valid) <= max_length
    return valid if is_whole else valid[: max_length - 2] + " …"
