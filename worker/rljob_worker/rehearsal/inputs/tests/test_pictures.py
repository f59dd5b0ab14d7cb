"""What the first rows of the data say of their pictures, before a run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from rljob_api.tests.builders import make_job
from rljob_api.v1alpha1 import ImageSpec
from rljob_worker.data.tests.test_pictures import vision_tokenizer
from rljob_worker.rehearsal.inputs.model_files import architecture_findings
from rljob_worker.rehearsal.inputs.prompts import InputCheck, check_data
from rljob_worker.vision.tests.checkpoints import PATCH_SIZES, checkpoint
from rljob_worker.vision.tests.picture_files import picture
from rljob_worker.vision.tests.video_files import animation, frames_of, video_file

JOB = (
    "data.applyChatTemplate=false",
    "data.train=[{path: train.jsonl}]",
    "data.batchSize=1",
)
ROW = {"prompt": "<image> a", "answer": "1", "images": "seen.png"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    checkpoint(tmp_path)
    vision_tokenizer().backend_tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "seen.png").write_bytes(picture(56, 56))
    return tmp_path


def findings(folder: Path, *overrides: str, **settings: Any) -> list[str]:
    """Field and message of each finding."""
    return [f"{item.problem.path}: {item.problem.message}" for item in checked(folder, *overrides, **settings).found]


def checked(folder: Path, *overrides: str, column: str = "images", max_pixels: int = 7056, **more: Any) -> InputCheck:
    """more: columns of the data."""
    (folder / "train.jsonl").write_text(json.dumps(ROW | more) + "\n")
    check, spec = InputCheck({}), make_job(*JOB, *overrides).spec
    seen: dict[str, Any] = {"images_column": column, "image": ImageSpec(min_pixels=1, max_pixels=max_pixels)}
    if "film" in more:
        seen["videos_column"] = "film"
    spec = spec.model_copy(update={"data": spec.data.model_copy(update=seen)})
    check_data(spec, folder, {"models/tiny": folder}, check)
    return check


def test_tokens_of_pictures_are_counted(folder: Path) -> None:
    # start, 2 x 2 merged patches, end and a word
    assert findings(folder, "data.maxPromptTokens=7") == []
    (message,) = findings(folder, "data.maxPromptTokens=6")
    assert message.startswith("spec.data.maxPromptTokens:") and "the longest has 7 tokens" in message


def test_videos_are_counted_and_opened(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "film.png").write_bytes(animation(frames_of(4)))
    more = {"prompt": "<image> a <video>", "film": "film.png"}
    # two patches of frames of 28 x 28, with start and end, besides the picture and the word
    assert findings(folder, "data.maxPromptTokens=11", **more) == []
    (message,) = findings(folder, "data.maxPromptTokens=10", **more)
    assert "the longest has 11 tokens" in message
    (folder / "film.png").write_bytes(animation(frames_of(4))[:-1500])
    (message,) = findings(folder, **more)
    assert message.startswith("spec.data.train[0].path: row 1 of") and "damaged or incomplete" in message


def test_a_decoder_of_videos_that_is_not_here_is_what_this_machine_lacks(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "film.mp4").write_bytes(video_file(frames_of(4)))
    monkeypatch.setitem(sys.modules, "av", None)
    check = checked(folder, film="film.mp4", prompt="<image> a <video>")
    assert not check.found and not check.unseen
    assert "pip install 'rljob[video]'" in check.lacking[0].problem.message


def test_a_picture_of_the_first_rows_that_cannot_be_decoded_is_named(folder: Path) -> None:
    (folder / "seen.png").write_bytes(picture(56, 56)[:-2000])
    (message,) = findings(folder)
    assert message.startswith("spec.data.train[0].path: row 1 of") and "damaged or incomplete" in message


@pytest.mark.parametrize(("row", "num_warned"), [({"images": [], "prompt": "a"}, 1), ({}, 0)])
def test_data_that_shows_nothing_is_advised_on(folder: Path, row: dict[str, Any], num_warned: int) -> None:
    check = checked(folder, **row)
    assert not check.found and len(check.warned) == num_warned
    assert all("images is empty in all 1 rows looked at" in item for item in check.warned)


@pytest.mark.parametrize(
    ("setting", "path", "words"),
    [
        ({"column": "pictures"}, "spec.data.imagesColumn", "no column 'pictures'"),
        ({"max_pixels": 700}, "spec.data.image.maxPixels", "less than one token of the model stands for, 784 pixels"),
    ],
)
def test_a_setting_that_does_not_go_with_the_files_is_named(
    folder: Path, setting: dict[str, Any], path: str, words: str
) -> None:
    (message,) = findings(folder, **setting)
    assert message.startswith(f"{path}:") and words in message


def test_a_model_that_takes_no_pictures_is_named(folder: Path) -> None:
    checkpoint(folder, "qwen2")
    (message,) = findings(folder)
    assert message.startswith("spec.models[0].path:") and "takes no pictures" in message


@pytest.mark.parametrize("model_type", PATCH_SIZES)
def test_a_model_that_sees_is_of_an_architecture_that_is_known(folder: Path, model_type: str) -> None:
    model = make_job(*JOB).spec.models[0]
    assert list(architecture_findings(model, "spec.models[0]", {"model_type": model_type})) == []
