"""Pictures for two towers: resized once, normalised twice."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rljob_worker.errors import InvalidJob
from rljob_worker.vision.fused_processing import FusedPictureProcessor, FusedRule, shared_fused_processor

PUBLISHED = {
    "input_sizes": [[3, 4, 4], [3, 4, 4]],
    "means": [[0.5, 0.25, 0.0], [0.5, 0.5, 0.5]],
    "stds": [[0.5, 0.25, 1.0], [0.5, 0.5, 0.5]],
    "interpolations": ["bicubic", "bicubic"],
    "image_resize_strategy": "resize-naive",
}


def png(colours: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(colours.astype(np.uint8)).save(file, "PNG")
    return file.getvalue()


def test_each_tower_gets_the_picture_by_its_own_mean_and_deviation() -> None:
    processor = FusedPictureProcessor(FusedRule.of(PUBLISHED), patch=2)
    patches = processor.patches(png(np.full((4, 4, 3), (255, 0, 51))))
    assert patches.pixel_values.shape == (1, 6, 4, 4) and patches.grid_thw.tolist() == [1, 2, 2]
    # red 1, green 0, blue 0.2: (1 - 0.5) / 0.5, (0 - 0.25) / 0.25, 0.2; and (x - 0.5) / 0.5
    np.testing.assert_allclose(patches.pixel_values[0, :, 0, 0], [1, -1, 0.2, 1, -1, -0.6], atol=1e-6)
    assert processor.shape(b"").num_tokens == 4


def test_one_tower_will_do_and_all_see_squares_of_one_size() -> None:
    alone = {name: value[:1] if isinstance(value, list) else value for name, value in PUBLISHED.items()}
    rule = FusedRule.of(alone)
    assert rule.size == 4 and len(rule.means) == len(rule.stds) == 1
    for sizes in ([[3, 4, 4], [3, 8, 8]], [[3, 4, 8], [3, 4, 8]]):
        with pytest.raises(ValueError, match="towers that see pictures of different sizes"):
            FusedRule.of({**PUBLISHED, "input_sizes": sizes})


def test_a_picture_that_is_not_square_is_squeezed_or_bordered() -> None:
    wide = png(np.full((2, 8, 3), 255))
    squeezed = FusedPictureProcessor(FusedRule.of(PUBLISHED), patch=2).patches(wide).pixel_values
    np.testing.assert_allclose(squeezed[0, 0], 1.0)
    rule = FusedRule.of({**PUBLISHED, "image_resize_strategy": "letterbox", "interpolations": ["nearest"]})
    bordered = FusedPictureProcessor(rule, patch=2).patches(wide).pixel_values[0, 0]
    # eight by eight with three rows of border (the mean: 127 of 255) above and below, then every second row
    np.testing.assert_allclose(bordered[[0, 3]], (127 / 255 - 0.5) / 0.5, atol=1e-6)


def test_a_checkpoint_without_or_with_another_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidJob, match="no preprocessor_config.json in it"):
        shared_fused_processor(str(tmp_path), 2)
    file = tmp_path / "preprocessor_config.json"
    file.write_text(json.dumps({**PUBLISHED, "image_resize_strategy": "resize-crop"}))
    with pytest.raises(InvalidJob, match="'resize-crop' is neither resize-naive nor letterbox"):
        shared_fused_processor(str(tmp_path), 2)
    file.write_text(json.dumps(PUBLISHED))
    assert shared_fused_processor(str(tmp_path), 2).shape(b"").num_tokens == 4
