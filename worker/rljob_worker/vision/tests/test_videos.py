"""Videos: which frames are seen, the same from every kind of file, and what is refused."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rljob_worker.errors import InvalidJob
from rljob_worker.vision.frame_sampling import VideoBudget, VideoHeader, sampled_frames
from rljob_worker.vision.pictures import BadPicture
from rljob_worker.vision.processing import PictureProcessor
from rljob_worker.vision.sizes import PixelBudget
from rljob_worker.vision.tests.checkpoints import checkpoint
from rljob_worker.vision.tests.picture_files import encoded as encode
from rljob_worker.vision.tests.picture_files import picture
from rljob_worker.vision.tests.video_files import animation, frames_of, video_file
from rljob_worker.vision.thumbnails import thumbnail_url
from rljob_worker.vision.videos import decode_frames, is_video, read_video_header, still

EIGHT = frames_of(8)
BUDGET = VideoBudget(PixelBudget(1, 28 * 56), frames_per_second=2, max_frames=6)


def processor_of(folder: Path, budget: VideoBudget | None = BUDGET) -> PictureProcessor:
    return PictureProcessor.load(str(checkpoint(folder)), PixelBudget(1, 10_000), videos=budget)


def header(num_frames: int, rate: float) -> VideoHeader:
    return VideoHeader(1, 1, tuple(frame / rate for frame in range(num_frames)), num_frames / rate)


@pytest.mark.parametrize(
    ("num_frames", "rate", "frames", "seconds"),
    [
        (8, 4, (0, 2, 4, 6), 1.0),  # two seconds of which two frames a second are taken
        (8, 8, (0, 2, 4, 6), 0.5),  # one second would have two: it has the least number there is
        (3, 1, (0, 1), 3.0),  # two of three
        (1, 1, (0, 0), 1.0),
        (40, 4, (0, 6, 13, 20, 26, 33), 3.333),  # ten seconds of which six frames are the most
    ],
)
def test_frames_are_sampled_evenly(num_frames: int, rate: float, frames: tuple[int, ...], seconds: float) -> None:
    sampled = sampled_frames(header(num_frames, rate), BUDGET, 2)
    assert sampled.frames == frames
    assert sampled.seconds == pytest.approx(seconds, abs=1e-3) and (sampled.seconds * 1024).is_integer()
    # the middle of the first two: of frames at 0 and 0.5 seconds 0.25
    assert sampled.times[0] == frames[1] / rate / 2


@pytest.mark.parametrize("format", ["PNG", "WEBP", "mp4", "mov", "matroska", "webm"])
def test_every_kind_of_file_has_its_frames_and_times(format: str) -> None:
    lossless = format in ("PNG", "WEBP", "matroska")
    codec = {"matroska": "ffv1", "webm": "libvpx"}.get(format, "mpeg4")
    encoded = animation(EIGHT, format=format) if format.isupper() else video_file(EIGHT, format, codec)
    assert is_video(encoded)
    found = read_video_header(encoded)
    assert found.size == (28, 28) and found.duration == pytest.approx(2.0, abs=1e-3)
    np.testing.assert_allclose(found.times, np.arange(8) / 4, atol=1e-3)
    frames = decode_frames(encoded, [1, 6])
    assert frames.shape == (2, 28, 28, 3)
    if lossless:
        assert np.array_equal(frames, np.stack([EIGHT[1], EIGHT[6]]))


@pytest.mark.parametrize("format", ["PNG", "WEBP"])
def test_frames_of_an_animation_are_turned_as_its_exif_data_says(format: str) -> None:
    exif, frames = Image.Exif(), frames_of(4, 28, 56)
    exif[0x0112] = 6  # shown a quarter turn clockwise
    encoded = animation(frames, format=format, exif=exif)
    assert read_video_header(encoded).size == (56, 28)
    assert (decode_frames(encoded, [0, 3]) == [np.rot90(frames[frame], -1) for frame in (0, 3)]).all()


def test_a_patch_holds_two_frames_each_as_the_processor_of_pictures_has_it(tmp_path: Path) -> None:
    """Values of pictures are those of transformers, bit for bit: see `test_processing`."""
    frames = frames_of(8, 56, 112)  # the budget has 28 x 56 pixels
    patches = processor_of(tmp_path).patches(animation(frames))
    assert patches.grid_thw.tolist() == [2, 2, 4] and patches.is_video and patches.seconds == 1.0
    pictures = PictureProcessor.load(str(checkpoint(tmp_path)), BUDGET.pixels)
    # [2 x 4 patches, channels, frames, pixels] of the frames 0, 2, 4 and 6
    alone = [pictures.patches(encode(frames[at])).pixel_values.reshape(8, 3, 2, 196) for at in (0, 2, 4, 6)]
    result = patches.pixel_values.reshape(2, 8, 3, 2, 196)
    for place, patch in enumerate(alone):
        assert np.array_equal(result[place // 2, :, :, place % 2], patch[:, :, 0])


def test_tokens_are_counted_from_headers_alone(tmp_path: Path) -> None:
    shape = processor_of(tmp_path).shape(animation(frames_of(8, 56, 112)))
    assert (shape.grid, shape.num_tokens) == ((2, 2, 4), 4)
    # frames at 0, 0.5, 1 and 1.5 seconds, in twos
    assert shape.video is not None and shape.video.times == (0.25, 1.25)


def test_a_video_that_is_read_ahead_is_not_opened_by_who_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processor, threads = processor_of(tmp_path), list[str]()

    def read(encoded: bytes) -> VideoHeader:
        threads.append(threading.current_thread().name)
        return read_video_header(encoded)

    monkeypatch.setattr("rljob_worker.vision.processing.read_video_header", read)
    processor.read_ahead([animation(EIGHT)])
    assert processor.patches(animation(EIGHT)).is_video
    assert threads == ["pictures-ahead"]


def test_a_still_has_the_shape_of_another_video_and_one_picture(tmp_path: Path) -> None:
    encoded = animation(EIGHT, milliseconds=[100, 300, 200, 250, 150, 400, 100, 500])
    replaced = still(read_video_header(encoded), picture(28, 28))
    processor = processor_of(tmp_path)
    assert processor.shape(replaced) == processor.shape(encoded)
    pixels = processor.pixels(replaced)
    assert (pixels == pixels[0]).all() and not np.array_equal(pixels, processor.pixels(encoded))


def test_a_thumbnail_of_a_video_is_of_its_frames() -> None:
    assert thumbnail_url(animation(EIGHT)).startswith("data:image/jpeg;base64,")


@pytest.mark.parametrize(
    ("encoded", "words"),
    [
        (picture(), "the bytes are no video of MP4, .* A picture goes into data.imagesColumn"),
        (b"<html>404</html>", "the bytes are no video"),
        (video_file(EIGHT)[:500], "the video is damaged or incomplete"),
        (b"\x1a\x45\xdf\xa3" + b"0" * 500, "the video is damaged or incomplete"),
        (video_file(EIGHT[:1]), "the video has one frame; write it as a picture"),
        (animation(EIGHT)[:-3000], "damaged or incomplete"),
    ],
    ids=["picture", "page", "cut file", "noise", "one frame", "cut animation"],
)
def test_what_is_no_video_is_refused(tmp_path: Path, encoded: bytes, words: str) -> None:
    with pytest.raises(BadPicture, match=words):
        read_video_header(encoded)
        processor_of(tmp_path).pixels(encoded)


def test_a_video_without_its_decoder_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = video_file(EIGHT)
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(InvalidJob, match=r"PyAV, which is not installed: pip install 'rljob\[video\]'"):
        read_video_header(encoded)
    assert read_video_header(animation(EIGHT)).size == (28, 28)


def test_a_job_that_shows_no_videos_refuses_one(tmp_path: Path) -> None:
    with pytest.raises(BadPicture, match="this is a video, and the job shows none"):
        processor_of(tmp_path, None).patches(animation(EIGHT))


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        (VideoBudget(PixelBudget(1, 783), 2, 8), "data.video.maxPixels: 783 .* 784 pixels; write 784 or more"),
        (VideoBudget(PixelBudget(1, 784), 2, 1), "data.video.maxFrames: 1 .* 2 frames; write 2 or more"),
    ],
)
def test_a_budget_below_one_token_is_refused(tmp_path: Path, budget: VideoBudget, words: str) -> None:
    with pytest.raises(InvalidJob, match=words):
        processor_of(tmp_path, budget)
