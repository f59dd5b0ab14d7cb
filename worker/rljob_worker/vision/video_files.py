"""Videos in MP4, MOV, MKV and WEBM files, by PyAV (https://pyav.basswood-io.com), which the extra `video` brings.

The container is named to FFmpeg by the first bytes: playlists, which may name other files, are never opened.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from rljob_worker.errors import NotHere, RLJobError
from rljob_worker.vision.frame_sampling import VideoHeader
from rljob_worker.vision.pictures import MOST_PIXELS, BadPicture, Pixels

INSTALL = "pip install 'rljob[video]'"

MOST_FRAMES = 2**20
"""Frames of the longest video that is read: four hours at 60 a second."""

_STILL_BRANDS = (b"avif", b"avis", b"heic", b"heix", b"mif1", b"msf1")
"""Pictures whose files begin as those of videos do."""


def container_of(encoded: bytes | memoryview) -> str | None:
    """What FFmpeg calls the container of a video; None for bytes that are none."""
    begins = bytes(encoded[:12])
    if begins[4:8] == b"ftyp" and begins[8:12] not in _STILL_BRANDS:
        return "mp4"
    if begins[4:8] in (b"moov", b"mdat", b"wide"):  # QuickTime files of before ftyp
        return "mov"
    return "matroska" if begins[:4] == b"\x1a\x45\xdf\xa3" else None


def file_header(encoded: bytes | memoryview) -> VideoHeader:
    """Size and times of a video. Decodes its first frame alone. Raises BadPicture; NotHere without PyAV."""
    with _opened(encoded) as (container, stream):
        times = _times(container, stream)
        container.seek(0)
        first = _upright(next(container.decode(stream)))
    seconds = [float((time - times[0]) * stream.time_base) for time in times]
    height, width = first.shape[:2]
    return VideoHeader(height, width, tuple(seconds), seconds[-1] + seconds[-1] / (len(seconds) - 1))


def file_frames(
    encoded: bytes | memoryview, frames: Sequence[int], resized: Callable[[Pixels], Pixels]
) -> list[Pixels]:
    """Some frames, ascending, each once it was given to `resized`. Raises BadPicture; NotHere without PyAV."""
    with _opened(encoded) as (container, stream):
        times = _times(container, stream)
        wanted = [times[frame] for frame in frames]
        container.seek(0)
        missing, result = set(wanted), dict[int, Pixels]()
        for frame in container.decode(stream):
            if frame.pts in missing:
                missing.remove(frame.pts)
                result[frame.pts] = resized(_upright(frame))
            if not missing:
                return [result[time] for time in wanted]
    lost = next(number for number, time in zip(frames, wanted, strict=True) if time in missing)
    raise BadPicture(f"the video is damaged or incomplete: frame {lost} cannot be decoded; write it again")


@contextmanager
def _opened(encoded: bytes | memoryview) -> Iterator[tuple[Any, Any]]:
    """The container and its video. What is wrong with them is raised as BadPicture."""
    try:
        import av
    except ImportError as error:
        raise NotHere(
            f"videos in MP4, MOV, MKV and WEBM files are decoded by PyAV, which is not installed: {INSTALL}; animated "
            "GIF, PNG and WEBP files do without"
        ) from error
    try:
        with av.open(io.BytesIO(encoded), format=container_of(encoded)) as container:
            if not container.streams.video:
                raise BadPicture("the file has no video in it")
            stream = container.streams.video[0]
            stream.codec_context.thread_count = 1  # who decodes has threads of its own
            if stream.width * stream.height > MOST_PIXELS:
                size = f"{stream.width} x {stream.height}"
                raise BadPicture(f"the video has frames of {size} pixels; write at most {MOST_PIXELS:,} a frame")
            yield container, stream
    except RLJobError:
        raise
    except Exception as error:  # FFmpeg's errors, and those of its bindings for damaged bytes
        raise BadPicture(f"the video is damaged or incomplete: {error}; write it again") from error


def _times(container: Any, stream: Any) -> list[int]:
    """When frames are shown, ascending, in units of the stream: those that an edit list leaves out are not."""
    times = sorted({item.pts for item in container.demux(stream) if item.pts is not None and not item.is_discard})
    if len(times) < 2:
        raise BadPicture("the video has one frame; write it as a picture into data.imagesColumn")
    if len(times) > MOST_FRAMES:
        raise BadPicture(f"the video has {len(times):,} frames; write one of at most {MOST_FRAMES:,}")
    return times


def _upright(frame: Any) -> Pixels:
    """[height, width, 3], turned as its file says."""
    pixels = frame.to_ndarray(format="rgb24")
    turns = round(frame.rotation / 90) % 4
    return np.ascontiguousarray(np.rot90(pixels, turns))
