"""Bytes of the control messages between a client, its data buffer and the peers. JSON and Arrow, never a pickle."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any

from rljob_worker.databuffer.layouts import Layout

_LENGTH = struct.Struct("<I")

POLL_SECONDS = 1.0
"""Longest a call waits before it answers "not yet"."""


class Pending(Exception):
    """Not yet: the caller asks again. Calls stay short, so that signals and dead callers are noticed soon."""


def ticket(edge: str, step: int, share: int, parts: Sequence[int], *, wait_seconds: float, chunk_bytes: int) -> bytes:
    """What a data buffer asks a peer for: the rows of one share in some of the peer's parts."""
    asked = {"edge": edge, "step": step, "share": share, "parts": list(parts)}
    return json.dumps({**asked, "wait_seconds": wait_seconds, "chunk_bytes": chunk_bytes}).encode()


def encode_layout(edge: str, step: int, position: int, layout: Layout) -> bytes:
    """A layout and where it comes from: the position of a child, -1 when it is complete and travels down."""
    head = json.dumps({"edge": edge, "step": step, "position": position}).encode()
    return _LENGTH.pack(len(head)) + head + layout.to_bytes()


def decode_layout(data: bytes) -> tuple[dict[str, Any], Layout]:
    (size,) = _LENGTH.unpack_from(data)
    head = json.loads(data[_LENGTH.size : _LENGTH.size + size])
    return head, Layout.from_bytes(data[_LENGTH.size + size :])
