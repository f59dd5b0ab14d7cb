"""Embeddings of videos by a service beside the job."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from rljob_worker.rewards.access import ServiceAccess
from rljob_worker.rewards.service import SHOWN_CHARACTERS, Service, ServiceAway, ServiceError

ROUTE = "/v1/videos"
ANSWER_SECONDS = 600.0
"""How long a video may take, those of other workers before it included."""
PAUSES = tuple(2.0**number for number in range(7))
"""A service that starts again is asked again after so many seconds each time: for two minutes."""


class ServedVideos:
    """Asks a service; threads may ask at once."""

    def __init__(self, access: ServiceAccess, sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep) -> None:
        self._access, self._sleep = access, sleep

    def embedding(self, video: Sequence[bytes]) -> Any:
        """What the service says of the encoded pictures of a video. Raises ServiceError."""
        body = {"videos": [[base64.b64encode(picture).decode() for picture in video]]}
        return asyncio.run(self._asked(body))

    async def _asked(self, body: Any) -> Any:
        service = Service(self._access)
        try:
            for seconds in PAUSES:
                try:
                    return await _embedding(service, body)
                except ServiceAway:
                    await self._sleep(seconds)
            return await _embedding(service, body)
        finally:
            await service.close()


async def _embedding(service: Service, body: Any) -> Any:
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            answer = await service.post(body, ROUTE)
    except TimeoutError as error:
        raise ServiceAway(f"{service} has not answered in {ANSWER_SECONDS:g} seconds") from error
    match answer:
        case {"embeddings": [embedding]}:
            return embedding
    shown = json.dumps(answer)[:SHOWN_CHARACTERS]
    raise ServiceError(f'{service} answers {shown}, not {{"embeddings": [[...]]}}')
