"""Embeddings of the videos of episodes: by a function of the user's own, by V-JEPA 2 in the worker, or by a service."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rljob_api.v1alpha1.simulator import EpisodeVideoSpec
from rljob_worker.conversations.world import TrajectoryFailed
from rljob_worker.embodied.served_videos import ServedVideos
from rljob_worker.embodied.simulators.settings import FIELD
from rljob_worker.embodied.video_frames import SPARE, evenly
from rljob_worker.errors import InvalidJob
from rljob_worker.rewards.access import service_access
from rljob_worker.users_code.function import check_call, load_function
from rljob_worker.vision.pictures import decode
from rljob_worker.vision.vjepa2 import Frames, VideoModel

Encode = Callable[[Sequence[bytes]], Any]
"""Numbers of the encoded pictures of a video; None where there is no embedding."""
ASKED_AT_ONCE = 4
"""Videos that a worker has a service encode at the same time."""


class VideoEncoder:
    """Encodes videos in threads of its own, beside the episodes that go on."""

    def __init__(self, encode: Encode, name: str, num_frames: int, num_threads: int = 1) -> None:
        """encode: pictures to numbers [dimensions], or None. name: what errors call it."""
        self._encode, self._name, self._num_frames = encode, name, num_frames
        self._threads = ThreadPoolExecutor(num_threads, "video-encoder")
        self._dimensions: int | None = None

    @staticmethod
    def load(spec: EpisodeVideoSpec, environment: Mapping[str, str]) -> VideoEncoder:
        """The encoder of a job. environment: says where services answer. Raises InvalidJob for one that is not
        there."""
        if spec.run is not None:
            function = load_function(f"{FIELD}.video.run", spec.run)
            check_call(f"{FIELD}.video.run", spec.run, function, ("frames",), spec.options)
            return VideoEncoder(of_frames(lambda frames: function(frames, **spec.options)), spec.run, spec.frames)
        if spec.service is not None:
            served = ServedVideos(service_access(spec.service, environment))
            return VideoEncoder(served.embedding, spec.service, spec.frames, ASKED_AT_ONCE)
        assert spec.path is not None, "the job was checked"
        model = VideoModel(f"{FIELD}.video.path", spec.path)
        try:
            model.require_frames(spec.frames)
        except ValueError as error:
            raise InvalidJob(f"{FIELD}.video.frames: {error}") from error
        return VideoEncoder(of_frames(model.encode), spec.path, spec.frames)

    @property
    def most_waiting(self) -> int:
        """Pictures of an episode that are kept for it, at most."""
        return SPARE * self._num_frames

    async def embedding(self, pictures: Sequence[bytes]) -> NDArray[np.float32] | None:
        """[dimensions] of a video, from one encoded picture or more; None where the encoder gives none. Raises
        TrajectoryFailed where it raises, InvalidJob for what is no embedding."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._embedding, pictures)

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown()

    def _embedding(self, pictures: Sequence[bytes]) -> NDArray[np.float32] | None:
        video = [pictures[at] for at in evenly(len(pictures), self._num_frames)]
        try:
            result = self._encode(video)
        except Exception as error:  # user code: whatever it raises costs the episode
            raise TrajectoryFailed("video_encoder", f"{self._name}: {type(error).__name__}: {error}") from error
        return None if result is None else self._checked(result)

    def _checked(self, result: Any) -> NDArray[np.float32]:
        try:
            numbers = np.asarray(result, np.float32)
        except (TypeError, ValueError):
            numbers = np.empty(0, np.float32)
        if numbers.ndim != 1 or not numbers.size or not np.isfinite(numbers).all():
            raise InvalidJob(
                f"{FIELD}.video: {self._name} returned {str(result)[:100]}; an embedding is a list of finite numbers, "
                "or None"
            )
        if self._dimensions not in (None, len(numbers)):
            raise InvalidJob(
                f"{FIELD}.video: {self._name} returned {len(numbers)} numbers, and {self._dimensions} of an earlier "
                "video; all embeddings have the same number of dimensions"
            )
        self._dimensions = len(numbers)
        return numbers


def of_frames(encode: Callable[[Frames], Any]) -> Encode:
    """From an encoder of pixels."""
    return lambda video: encode(np.stack([decode(picture) for picture in video]))
