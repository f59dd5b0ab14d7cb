"""The token by which agents of a job show that they are its own."""

from __future__ import annotations

import hashlib
import hmac


def agents_token(job_token: str) -> str:
    """What agents show: 64 hexadecimal digits made of the job's own secret (HMAC-SHA256), which they are not told."""
    return hmac.new(job_token.encode(), b"rljob agents", hashlib.sha256).hexdigest()
