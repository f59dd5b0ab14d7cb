"""What a checkpoint has to say of pictures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from rljob_worker.errors import InvalidJob
from rljob_worker.vision.checkpoint_files import PictureTokens, read_vision_files
from rljob_worker.vision.tests.checkpoints import END, PAD, PATCH_SIZES, START, VIDEO_PAD, checkpoint


def change(file: Path, **values: Any) -> None:
    """Set values of a JSON file; None removes one."""
    content = json.loads(file.read_text()) | values
    file.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


@pytest.mark.parametrize("model_type", PATCH_SIZES)
def test_what_the_files_say_is_read(tmp_path: Path, model_type: str) -> None:
    files = read_vision_files(str(checkpoint(tmp_path, model_type)))
    assert files.tokens == PictureTokens(START, PAD, END, VIDEO_PAD, writes_times=model_type != "qwen2_5_vl")
    assert files.patches.factor == 2 * PATCH_SIZES[model_type]
    assert (files.patches.temporal_patch_size, files.patches.resample) == (2, 3)


@pytest.mark.parametrize("model_type", PATCH_SIZES)
def test_what_a_config_leaves_out_is_the_default_of_its_class(tmp_path: Path, model_type: str) -> None:
    change(checkpoint(tmp_path, model_type) / "config.json", vision_config=None)
    assert read_vision_files(str(tmp_path)).patches.patch_size == PATCH_SIZES[model_type]


def test_a_processor_config_with_an_image_processor_inside_is_read(tmp_path: Path) -> None:
    place = checkpoint(tmp_path) / "preprocessor_config.json"
    inner = json.loads(place.read_text()) | {"image_mean": [0.5, 0.5, 0.5]}
    place.unlink()
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": inner}))
    assert read_vision_files(str(tmp_path)).patches.mean == (0.5, 0.5, 0.5)


def test_a_processor_of_transformers_is_read_as_it_is_saved(tmp_path: Path) -> None:
    checkpoint(tmp_path, "qwen3_vl")
    (tmp_path / "preprocessor_config.json").unlink()
    Qwen2VLImageProcessorPil(patch_size=16, image_mean=[0.5] * 3, image_std=[0.25] * 3).save_pretrained(tmp_path)
    patches = read_vision_files(str(tmp_path)).patches
    assert (patches.patch_size, patches.mean, patches.std) == (16, (0.5,) * 3, (0.25,) * 3)


@pytest.mark.parametrize(
    ("model_type", "words"),
    [("qwen2", "type 'qwen2' takes no pictures here; use one of Qwen2.5-VL"), ("gemma3", "attend both ways")],
)
def test_a_model_that_takes_no_pictures_is_refused_by_name(tmp_path: Path, model_type: str, words: str) -> None:
    with pytest.raises(InvalidJob, match=words):
        read_vision_files(str(checkpoint(tmp_path, model_type)))


def test_a_checkpoint_without_a_processor_is_refused(tmp_path: Path) -> None:
    (checkpoint(tmp_path) / "preprocessor_config.json").unlink()
    with pytest.raises(InvalidJob, match="has no processor for pictures: put its preprocessor_config.json"):
        read_vision_files(str(tmp_path))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"image_processor_type": "CLIPImageProcessor"}, "is a CLIPImageProcessor, and Qwen2.5-VL has one of"),
        ({"patch_size": 16}, "has patch_size 16, and its vision tower 14"),
        ({"merge_size": 1}, "has merge_size 1, and its vision tower 2"),
        ({"do_normalize": False}, "do_normalize: false"),
    ],
)
def test_a_processor_of_another_model_is_refused(tmp_path: Path, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidJob, match=words):
        read_vision_files(str(checkpoint(tmp_path, **settings)))


def test_a_config_without_the_tokens_of_pictures_is_refused(tmp_path: Path) -> None:
    change(checkpoint(tmp_path) / "config.json", image_token_id=None)
    with pytest.raises(InvalidJob, match="has no image_token_id"):
        read_vision_files(str(tmp_path))


def test_a_file_that_is_no_json_is_named(tmp_path: Path) -> None:
    (checkpoint(tmp_path) / "preprocessor_config.json").write_text("{")
    with pytest.raises(InvalidJob, match=r"preprocessor_config.json cannot be read"):
        read_vision_files(str(tmp_path))
