"""The client of the Hub's library, with a limit for questions that the library asks without one."""

from __future__ import annotations

import httpx2
from huggingface_hub import constants, get_session


def limit_silence() -> None:
    """Let no GET of this process wait longer than HF_HUB_ETAG_TIMEOUT for the next bytes of a Hub, unless it has a
    limit of its own. Uploads go on as they are: the Hub may take long over a commit."""
    client = get_session()
    hooks = client.event_hooks
    if _limit not in hooks["request"]:
        client.event_hooks = {**hooks, "request": [*hooks["request"], _limit]}


def _limit(request: httpx2.Request) -> None:
    own = request.extensions.get("timeout", {})
    if request.method == "GET" and not any(own.values()):
        limit = httpx2.Timeout(constants.HF_HUB_ETAG_TIMEOUT)
        request.extensions = {**request.extensions, "timeout": limit.as_dict()}
