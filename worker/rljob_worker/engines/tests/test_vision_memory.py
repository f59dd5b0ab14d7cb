"""Pictures leave nothing behind: memory of a process that decodes, scores and trains with ever new ones."""

from __future__ import annotations

import gc
import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from rljob_api.catalogue.columns import IMAGES
from rljob_api.pipeline.meshes import Mesh
from rljob_worker.batch import Batch, Column
from rljob_worker.engines.fsdp import FSDPEngine, TrainSettings
from rljob_worker.engines.models import random_policy
from rljob_worker.engines.picture_reader import PictureReader
from rljob_worker.engines.tests.builders import PolicyGradient, mesh_here
from rljob_worker.engines.tests.ranks import run_fresh_ranks
from rljob_worker.engines.tests.seeing import IMAGE, MERGED, PATCH, START, STOP, write_vision_config
from rljob_worker.vision.pictures import PictureList
from rljob_worker.vision.processing import PictureProcessor
from rljob_worker.vision.sizes import PixelBudget

MIB = 1 << 20
SIDE = 590
"""Pixels of the side of a picture of random colours, which has 1 MB."""


def private_bytes() -> int:
    gc.collect()
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_Dirty"))


def noise(seed: int) -> bytes:
    colours = np.random.default_rng(seed).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(colours).save(file, "PNG", compress_level=0)
    return file.getvalue()


def rows_that_show(picture: bytes, processor: PictureProcessor) -> Batch:
    """Two rows of one prompt."""
    prompt = [START, *[IMAGE] * processor.shape(picture).num_tokens, STOP]
    responses = Column.ragged([np.array([5, 6, 7]), np.array([8, 9])])
    columns = {
        "prompt_ids": Column.ragged([np.array(prompt)] * 2),
        "response_ids": responses,
        IMAGES: Column.binary([PictureList.pack([picture])]).per_group_at(np.array([0]), 2),
        "advantages": Column.from_lengths(np.array([1.0, 1.0, 1.0, -1.0, -1.0]), responses.lengths),
        "weight": Column.fixed(np.ones(2)),
    }
    return Batch.build(np.arange(2), np.zeros(2, np.int64), columns, len(prompt) + responses.lengths)


def grown(_rank: int, path: str, num_pictures: int) -> int:
    """Bytes that the process has more after three quarters of the pictures, than after the first quarter."""
    model = random_policy(path, torch.float32, 0)
    processor = PictureProcessor.load(path, PixelBudget(1, MERGED * PATCH**2 * 16))
    settings = TrainSettings(tokens_per_micro_batch=64, learning_rate=1e-3)
    reader = PictureReader.of(model, processor)
    engine = FSDPEngine(model, settings, torch.device("cpu"), mesh_here(Mesh()), reader=reader)
    before = 0
    for seed in range(num_pictures):
        batch = rows_that_show(noise(seed), processor)
        engine.log_probs(batch)
        engine.update(batch, PolicyGradient())
        if seed == num_pictures // 4:
            before = private_bytes()
    return private_bytes() - before


@pytest.mark.slow
def test_memory_stays_with_ever_new_pictures(tmp_path: Path) -> None:
    path = write_vision_config(tmp_path / "model", "qwen2_5_vl")
    settings = {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": PATCH, "merge_size": 2}
    (tmp_path / "model" / "preprocessor_config.json").write_text(json.dumps(settings))
    # 75 of them come after the first quarter, each of 1 MB encoded and decoded
    assert run_fresh_ranks(1, grown, tmp_path / "run", path, 100)[0] < 15 * MIB
