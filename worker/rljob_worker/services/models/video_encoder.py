"""Videos of episodes as vectors, by V-JEPA 2.

POST URL/v1/videos    {"videos": [["PNG in base64", ...], ...]}
200                   {"embeddings": [[0.1, ...], ...]}                 one for each video, in order
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from rljob_api.catalogue.services import VideoEncoderOptions
from rljob_worker.errors import BadData
from rljob_worker.services.models.loading import require_accelerators
from rljob_worker.services.placement import ON_CPU, ModelPlacement
from rljob_worker.services.requests import BadRequest, Row
from rljob_worker.vision.pictures import decode
from rljob_worker.vision.vjepa2 import VideoModel

VIDEOS = "/v1/videos"


class ServedVideoEncoder:
    """Answers embeddings of videos; a copy computes one video after another on its first accelerator."""

    def __init__(self, options: VideoEncoderOptions, place: ModelPlacement = ON_CPU) -> None:
        require_accelerators(place)
        self._model = VideoModel("options.path", options.path, place.device, options.precision.lower())

    def rewards(self, rows: Sequence[Row]) -> NoReturn:
        """It has none. Raises BadRequest."""
        raise BadRequest(f"an encoder of videos rewards no rows; it has {VIDEOS}, and the stage ProgressReward rewards")

    def answer(self, path: str, body: Any) -> Any:
        """Embeddings of videos. Raises BadRequest."""
        if path != VIDEOS:
            raise BadRequest(f"an encoder of videos has no route {path}; it has {VIDEOS}")
        return {"embeddings": [self._embedding(video) for video in _videos(body)]}

    def _embedding(self, video: NDArray[np.uint8]) -> list[float]:
        try:
            result: list[float] = self._model.encode(video).tolist()
        except ValueError as error:
            raise BadRequest(str(error)) from error
        return result


def _videos(body: Any) -> list[NDArray[np.uint8]]:
    """[frames, height, width, 3] each. Raises BadRequest."""
    videos = body.get("videos") if isinstance(body, Mapping) else None
    if not isinstance(videos, list) or not videos or not all(isinstance(video, list) and video for video in videos):
        raise BadRequest('a request is {"videos": [["PNG in base64", ...], ...]} with one frame or more in each')
    try:
        return [np.stack([decode(base64.b64decode(frame)) for frame in video]) for video in videos]
    except (ValueError, TypeError, BadData) as error:
        raise BadRequest(f"a frame is no picture of the size of the others: {error}") from error
