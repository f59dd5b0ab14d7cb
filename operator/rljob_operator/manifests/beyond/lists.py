"""Lists of what is allowed, and the words for what is not in one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def unlisted(what: str, name: str, listed: Sequence[str] | None, field: str) -> Iterator[str]:
    """Says that `name` is not in the list, which is the ceiling `field`; None admits any."""
    if listed is not None and name not in listed:
        yield f"{what} {name}: {allowed(listed)} ({field})"


def allowed(listed: Sequence[str]) -> str:
    """What the list admits."""
    names = [name for name in listed if name]
    return f"allowed are {', '.join(names)}" if names else "none is allowed"
