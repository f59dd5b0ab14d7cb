"""Embeddings of videos by a service beside the job."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Sequence
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

from rljob_worker.rewards.access import ServiceAccess
from rljob_worker.rewards.service import SHOWN_CHARACTERS, ServiceError

ROUTE = "/v1/videos"
ANSWER_SECONDS = 600.0
"""How long a video may take, those of other workers before it included."""
TRIES, PAUSE_SECONDS = 8, 1.0
"""A service that starts again is asked again, after pauses that double: for two minutes."""


class ServedVideos:
    """Asks a service; threads may ask at once."""

    def __init__(self, access: ServiceAccess, sleep: Callable[[float], None] = time.sleep) -> None:
        self._name, self._url = access["name"], access["url"].rstrip("/") + ROUTE
        self._headers = {"Authorization": f"Bearer {access['token']}", "Content-Type": "application/json"}
        self._opener, self._sleep = build_opener(ProxyHandler({})), sleep

    def embedding(self, video: Sequence[bytes]) -> Any:
        """What the service says of the encoded pictures of a video. Raises ServiceError."""
        body = json.dumps({"videos": [[base64.b64encode(picture).decode() for picture in video]]}).encode()
        for number in range(TRIES):
            if number:
                self._sleep(PAUSE_SECONDS * 2 ** (number - 1))
            try:
                return self._answer_of(self._post(body))
            except (OSError, HTTPException) as error:  # it is away, or has ended in the middle of its answer
                problem = error
        raise ServiceError(f"service {self._name} at {self._url} cannot be reached: {problem}")

    def _post(self, body: bytes) -> Any:
        """Its JSON. Raises ServiceError for what it refuses; OSError and HTTPException where it may answer later."""
        request = Request(self._url, body, self._headers)
        try:
            with self._opener.open(request, timeout=ANSWER_SECONDS) as response:
                return json.loads(response.read())
        except HTTPError as error:
            with error:
                said = f"answers {error.code}: {error.read().decode(errors='replace')[:SHOWN_CHARACTERS]}"
            if error.code >= 500:
                raise ConnectionError(said) from error
            raise ServiceError(f"service {self._name} {said}") from error
        except ValueError as error:
            raise ServiceError(f"service {self._name} answers no JSON: {error}") from error

    def _answer_of(self, answer: Any) -> Any:
        match answer:
            case {"embeddings": [embedding]}:
                return embedding
        shown = json.dumps(answer)[:SHOWN_CHARACTERS]
        raise ServiceError(f'service {self._name} answers {shown}, not {{"embeddings": [[...]]}}')
