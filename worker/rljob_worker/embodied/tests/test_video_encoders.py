"""Encoders of videos: the user's own, and V-JEPA 2."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import VJEPA2Config, VJEPA2Model

from rljob_api.v1alpha1.simulator import EpisodeVideoSpec
from rljob_worker.conversations.world import TrajectoryFailed
from rljob_worker.embodied.video_encoders import VideoEncoder, of_frames
from rljob_worker.embodied.video_frames import evenly
from rljob_worker.errors import InvalidJob
from rljob_worker.vision.vjepa2 import VideoModel


def png(value: int, size: int = 16) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((size, size, 3), value, np.uint8)).save(file, "PNG")
    return file.getvalue()


@contextmanager
def encoder(encode: Callable[[Any], Any], frames: int = 3) -> Iterator[VideoEncoder]:
    result = VideoEncoder(of_frames(encode), "my:encode", frames)
    try:
        yield result
    finally:
        result.close()


def test_frames_are_evenly_spaced_from_the_first_to_the_last() -> None:
    assert evenly(9, 3) == [0, 4, 8]
    assert evenly(3, 5) == [0, 0, 1, 2, 2]  # halves are rounded to even places: 0, 0.5, 1, 1.5, 2
    assert evenly(1, 2) == [0, 0]
    with encoder(lambda frames: frames[:, 0, 0, 0]) as mean:
        video = [png(value) for value in range(9)]
        assert asyncio.run(mean.embedding(video)) == pytest.approx([0, 4, 8])


def test_a_function_may_have_no_embedding_and_one_that_raises_costs_its_episode() -> None:
    with encoder(lambda frames: None) as silent:
        assert asyncio.run(silent.embedding([png(1)])) is None
    with encoder(lambda frames: 1 / 0) as broken, pytest.raises(TrajectoryFailed, match="my:encode: ZeroDivision"):
        asyncio.run(broken.embedding([png(1)]))


@pytest.mark.parametrize("result", [float("nan"), [], [1.0, float("inf")], "text", [[1.0]], ["a"]])
def test_what_is_no_embedding_is_refused(result: Any) -> None:
    with encoder(lambda frames: result) as wrong, pytest.raises(InvalidJob, match="a list of finite numbers"):
        asyncio.run(wrong.embedding([png(1)]))


def test_embeddings_have_one_size() -> None:
    with encoder(lambda frames: [0.0] * (1 + int(frames[0, 0, 0, 0]))) as growing:
        asyncio.run(growing.embedding([png(1)]))
        with pytest.raises(InvalidJob, match="3 numbers, and 2 of an earlier video"):
            asyncio.run(growing.embedding([png(2)]))


SIZES = {"patch_size": 8, "crop_size": 16, "frames_per_clip": 4, "tubelet_size": 2, "hidden_size": 16, "mlp_ratio": 2}
HEADS = {"num_attention_heads": 2, "num_hidden_layers": 1, "pred_hidden_size": 16}
PREDICTOR = {"pred_num_attention_heads": 2, "pred_num_hidden_layers": 1}


def save_vjepa2(folder: Path) -> Path:
    """A tiny one."""
    VJEPA2Model(VJEPA2Config(**SIZES, **HEADS, **PREDICTOR)).save_pretrained(folder)
    (folder / "video_preprocessor_config.json").write_text(json.dumps({"size": {"shortest_edge": 16}}))
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_vjepa2(tmp_path_factory.mktemp("vjepa2"))


def test_vjepa2_sees_what_stock_transformers_sees(model: Path) -> None:
    frames = np.random.default_rng(0).integers(0, 256, (4, 16, 16, 3)).astype(np.uint8)
    colours = (frames / 255.0 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    pixels = torch.from_numpy(colours.transpose(0, 3, 1, 2).astype(np.float32))[None]
    with torch.inference_mode():
        patches = VJEPA2Model.from_pretrained(model).eval()(pixels, skip_predictor=True).last_hidden_state
    assert VideoModel("path", str(model)).encode(frames) == pytest.approx(patches[0].mean(0).numpy(), abs=1e-6)
    with pytest.raises(InvalidJob, match=r"video.frames: .* write a multiple of 2"):
        VideoEncoder.load(EpisodeVideoSpec(path=str(model), frames=3), {})


def test_what_is_no_vjepa2_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    with pytest.raises(InvalidJob, match="'qwen3' model, not V-JEPA 2"):
        VideoModel("path", str(tmp_path))
    with pytest.raises(InvalidJob, match="no V-JEPA 2 model can be loaded"):
        VideoModel("path", str(tmp_path / "absent"))
