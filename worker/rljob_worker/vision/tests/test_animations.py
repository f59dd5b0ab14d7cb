"""Small animations for people."""

import base64
import io

import numpy as np
from PIL import Image

from rljob_worker.vision.animations import MOST_BYTES, animation_url


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def frames_of(url: str) -> list[np.ndarray]:
    head, _, body = url.partition(",")
    assert head == "data:image/png;base64" and len(body) * 3 / 4 <= MOST_BYTES
    image = Image.open(io.BytesIO(base64.b64decode(body)))
    frames = []
    for number in range(getattr(image, "n_frames", 1)):
        image.seek(number)
        frames.append(np.asarray(image.convert("RGB")))
    return frames


def test_an_animation_shows_small_pictures_one_after_another_in_their_colours() -> None:
    colours = [(200, 0, 0), (0, 200, 0), (0, 0, 200)]
    frames = frames_of(animation_url([png(np.full((192, 64, 3), colour, np.uint8)) for colour in colours]))
    assert [frame.shape for frame in frames] == [(96, 32, 3)] * 3
    assert [tuple(frame[40, 16]) for frame in frames] == colours


def test_a_long_animation_keeps_its_size_by_leaving_frames_out_but_not_the_last() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (31, 96, 96, 3), dtype=np.uint8)  # 4 to 7 kB each
    last = np.full((96, 96, 3), (250, 0, 0), np.uint8)
    frames = frames_of(animation_url([*map(png, noise), png(last)]))
    assert 2 < len(frames) < 32 and frames[-1][0, 0, 0] > 150 > frames[-1][0, 0, 1]
