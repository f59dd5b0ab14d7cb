"""Patches are those of transformers bit for bit, made once, and by threads."""

from __future__ import annotations

import io
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil, smart_resize

from rljob_worker.errors import InvalidJob
from rljob_worker.vision.pictures import BadPicture, decode, read_header
from rljob_worker.vision.pixel_cache import PixelCache
from rljob_worker.vision.processing import PictureProcessor
from rljob_worker.vision.sizes import PixelBudget, fitted_size
from rljob_worker.vision.tests.checkpoints import checkpoint
from rljob_worker.vision.tests.picture_files import picture, pixels_of

BUDGET = PixelBudget(28 * 28, 84 * 84)
SIZES = [(20, 30), (84, 84), (300, 200), (13, 300), (56, 29), (17, 17)]
LONG = [(7, 900), (500, 3)]
"""Of which the rule of transformers, applied once, leaves more pixels than the budget has."""


def processor_of(folder: Path, model_type: str = "qwen2_5_vl", budget: PixelBudget = BUDGET) -> PictureProcessor:
    return PictureProcessor.load(str(checkpoint(folder, model_type)), budget)


@pytest.mark.parametrize(("model_type", "patch"), [("qwen2_5_vl", 14), ("qwen3_vl", 16)])
@pytest.mark.parametrize("size", SIZES)
def test_patches_are_those_of_transformers_bit_for_bit(
    tmp_path: Path, model_type: str, patch: int, size: tuple[int, int]
) -> None:
    stock = Qwen2VLImageProcessorPil(
        patch_size=patch, size={"shortest_edge": BUDGET.min_pixels, "longest_edge": BUDGET.max_pixels}
    )
    data = picture(*size)
    expected = stock(Image.open(io.BytesIO(data)), return_tensors="np")
    patches = processor_of(tmp_path, model_type).patches(data)
    assert patches.pixel_values.dtype == np.float32
    assert np.array_equal(patches.pixel_values, expected["pixel_values"])
    assert patches.grid_thw.tolist() == expected["image_grid_thw"][0].tolist()


@pytest.mark.parametrize("size", SIZES + LONG)
def test_pixels_already_have_the_size_that_another_processor_would_choose(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    resized = processor_of(tmp_path).pixels(picture(*size)).shape[:2]
    stock = smart_resize(*resized, 28, BUDGET.min_pixels, BUDGET.max_pixels)
    assert stock == resized and resized[0] * resized[1] <= BUDGET.max_pixels


def test_tokens_are_counted_from_the_header_alone(tmp_path: Path) -> None:
    processor = processor_of(tmp_path)
    # 300 x 200 shrinks by sqrt(60000 / 7056) = 2.916 to 102.9 x 68.6, that is 3 x 2 squares of 28
    data = picture(300, 200)
    assert processor.grid(read_header(data).size) == (1, 6, 4)
    assert processor.num_tokens(read_header(data).size) == 6
    assert processor.patches(data).num_patches == 24


def test_a_size_between_the_bounds_is_rounded_to_whole_tokens() -> None:
    # 42 lies between 28 and 56, as near to both: the even multiple of 28 is taken, 2; 43 is nearer to 2 as well
    assert fitted_size((42, 43), 28, PixelBudget(1, 10_000)) == (56, 56)
    # 20 x 30 becomes 28 x 28 of 784 pixels, which is less than 1024: sides grow by sqrt(1024 / 600) = 1.306
    assert fitted_size((20, 30), 28, PixelBudget(1024, 10_000)) == (28, 56)


def test_a_picture_that_is_a_line_is_refused() -> None:
    assert fitted_size((1, 200), 28, BUDGET)
    with pytest.raises(BadPicture, match="1 : 200"):
        fitted_size((1, 201), 28, BUDGET)


def test_a_budget_below_one_token_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidJob, match=r"data.image.maxPixels: 783 .* write 784 or more"):
        processor_of(tmp_path, budget=PixelBudget(1, 783))


def test_a_picture_of_equal_bytes_is_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processor, calls = processor_of(tmp_path), []
    monkeypatch.setattr("rljob_worker.vision.processing.decode", lambda data: calls.append(1) or decode(data))
    data = picture()
    first, second = processor.patches(data), processor.patches(memoryview(bytes(data)))
    assert len(calls) == 1 and np.array_equal(first.pixel_values, second.pixel_values)


def test_a_picture_that_is_read_ahead_is_not_decoded_by_who_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processor, threads = processor_of(tmp_path), []
    monkeypatch.setattr(
        "rljob_worker.vision.processing.decode",
        lambda data: threads.append(threading.current_thread().name) or decode(data),
    )
    pictures = [picture(seed=i) for i in range(5)]
    processor.read_ahead(pictures)
    for thread in threading.enumerate():
        if thread.name == "pictures-ahead":
            thread.join()
    for data in pictures:
        processor.pixels(data)
    assert threads == ["pictures-ahead"] * 5


def test_a_picture_that_cannot_be_read_ahead_is_an_error_of_who_asks(tmp_path: Path) -> None:
    processor = processor_of(tmp_path)
    processor.read_ahead([b"no picture"])
    with pytest.raises(BadPicture, match="no picture of"):
        processor.pixels(b"no picture")


def test_the_pictures_used_longest_ago_are_dropped() -> None:
    # pictures of 12 bytes, room for two
    cache, made = PixelCache(most_bytes=24), []

    def make(name: bytes) -> np.ndarray:
        made.append(name)
        return pixels_of(2, 2)

    for name in (b"a", b"b", b"a", b"c", b"a", b"b"):
        cache.get(name, lambda name=name: make(name))
    assert made == [b"a", b"b", b"c", b"b"]
    assert cache.nbytes == 24


def test_one_picture_larger_than_the_room_is_given_all_the_same() -> None:
    cache = PixelCache(most_bytes=5)
    assert cache.get(b"a", lambda: pixels_of(2, 2)).shape == (2, 2, 3)
