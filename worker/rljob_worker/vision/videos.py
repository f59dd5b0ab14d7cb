"""Encoded videos: what they are stored as, as they travel with the prompt of a group.

    MP4, MOV, MKV, WEBM         by PyAV, see `video_files`
    animated GIF, PNG, WEBP     by Pillow, see `animated_files`
    a still                     one picture at given times: what a check puts in a video's place

They are items of the column `images`, beside pictures: their bytes say what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from rljob_worker.vision.animated_files import animation_frames, animation_header, is_animation
from rljob_worker.vision.frame_sampling import VideoHeader
from rljob_worker.vision.pictures import BadPicture, Pixels, decode, read_header
from rljob_worker.vision.video_files import container_of, file_frames, file_header

FORMATS = ("MP4", "MOV", "MKV", "WEBM", "GIF", "PNG", "WEBP")

MOST_VIDEO_BYTES = 512 << 20
"""Bytes of the largest encoded video."""

_STILL = b"RLJOB-STILL\0"
_NUMBER = np.dtype("<f8")


def is_video(encoded: bytes | memoryview) -> bool:
    """Whether these are the bytes of a video, not of a picture; nothing is decoded for it."""
    return _is_still(encoded) or container_of(encoded) is not None or is_animation(encoded)


def read_video_header(encoded: bytes | memoryview) -> VideoHeader:
    """Size and times of the frames. Raises BadPicture: no video, damaged, too large; InvalidJob where its decoder is
    not installed."""
    if len(encoded) > MOST_VIDEO_BYTES:
        raise BadPicture(f"the video has {len(encoded):,} bytes; write one of at most {MOST_VIDEO_BYTES:,}")
    if _is_still(encoded):
        picture, times = _still_parts(encoded)
        return VideoHeader(*read_header(picture).size, tuple(times[:-1].tolist()), float(times[-1]))
    if container_of(encoded) is not None:
        return file_header(encoded)
    if is_animation(encoded):
        return animation_header(encoded)
    raise BadPicture(
        f"the bytes are no video of {', '.join(FORMATS)}; they begin with {bytes(encoded[:16])!r}. A picture goes into "
        "data.imagesColumn"
    )


def decode_frames(
    encoded: bytes | memoryview, frames: Sequence[int], resized: Callable[[Pixels], Pixels] = lambda pixels: pixels
) -> NDArray[np.uint8]:
    """Frames of ascending numbers, uint8 [frames, height, width, 3], upright, each once it was given to `resized`.
    Raises as `read_video_header` does."""
    if _is_still(encoded):
        picture, _ = _still_parts(encoded)
        return np.stack([resized(decode(picture))] * len(frames))
    read = file_frames if container_of(encoded) is not None else animation_frames
    return np.stack(read(encoded, frames, resized))


def still(header: VideoHeader, picture: bytes) -> bytes:
    """A video with the times of another, all frames of which are one picture."""
    times = np.array([*header.times, header.duration], _NUMBER)
    return b"".join([_STILL, len(times).to_bytes(4, "little"), times.tobytes(), picture])


def _is_still(encoded: bytes | memoryview) -> bool:
    return bytes(encoded[: len(_STILL)]) == _STILL


def _still_parts(encoded: bytes | memoryview) -> tuple[memoryview, NDArray[np.float64]]:
    """The picture of a still, and the times of its frames with the duration behind them."""
    data = memoryview(encoded)[len(_STILL) :]
    count = int.from_bytes(data[:4], "little")
    end = 4 + count * _NUMBER.itemsize
    if count < 3 or end >= len(data):
        raise BadPicture("the video is damaged or incomplete; write it again")
    return data[end:], np.frombuffer(data[4:end], _NUMBER)
