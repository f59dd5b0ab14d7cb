"""A tiny Qwen2.5-VL on disk, pictures that are drawn, and a job that trains it on them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image, ImageDraw
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from rljob_worker.tests.comparable import comparable_job
from rljob_worker.tiny.tokenizer import train_tokenizer

SIDE = 84
"""Pixels of a picture's side: 6 patches, which are 3 merged ones."""
NUM_ROWS = 8
COLOURS = ("red", "green", "blue", "black")
QUESTION = "How many shapes are there?"

VISION_TOKENS = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>", "<|video_pad|>")

SEEN = '''
import hashlib, json, os, signal
from pathlib import Path

from rljob_worker.tests.fault_injection import await_commit
from rljob_worker.vision.processing import PictureProcessor

FOLDER = Path(__file__).parent
MAKE = PictureProcessor.patches


def patches(processor, encoded):
    """As ever, with the digests of a picture and of its patches written down by process."""
    made = MAKE(processor, encoded)
    line = [hashlib.sha256(item).hexdigest() for item in (encoded, made.pixel_values.tobytes())]
    with (FOLDER / f"patches-{os.getpid()}").open("a") as file:
        file.write(json.dumps(line) + "\\n")
    return made


PictureProcessor.patches = patches


def look(batch, context):
    return {"looked": [0.0] * len(batch)}


def note(batch, context):
    """Kills its worker in step 2, where it is asked to, the first time a run gets there."""
    asked = FOLDER / "kill"
    if context.step == 2 and asked.exists():
        asked.unlink()
        await_commit(1)
        os.kill(os.getpid(), signal.SIGKILL)
    return {"noted": [0.0] * len(batch)}


def reward(row):
    """How varied the response is, and a little of what its picture is."""
    (picture,) = row["pictures"]
    return len(set(row["response"])) / max(1, len(row["response"])) + sum(picture) % 7 / 100
'''
FILES = {"seen.py": SEEN}
"""What a job needs besides it."""


def drawn(index: int) -> bytes:
    """A PNG with one to four discs on white."""
    image = Image.new("RGB", (SIDE, SIDE), "white")
    pen = ImageDraw.Draw(image)
    for disc in range(1 + index % 4):
        left, top = 28 * ((index + disc) % 3) + 6, 28 * (disc % 3) + 6
        pen.ellipse((left, top, left + 16, top + 16), fill=COLOURS[(index + disc) % 4])
    pen.line((0, index, SIDE, index), fill="black")  # no two are equal
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def write_picture_data(folder: Path, num_rows: int = NUM_ROWS) -> None:
    """`train.parquet`: a question about each picture."""
    rows = [
        {
            "question": f"<image>{QUESTION}",
            "images": [{"bytes": drawn(index), "path": None}],
            "answer": str(1 + index % 4),
        }
        for index in range(num_rows)
    ]
    pq.write_table(pa.Table.from_pylist(rows), folder / "train.parquet")


def write_seeing_model(folder: Path) -> None:
    """A Qwen2.5-VL of about 0.1 M parameters with its tokenizer, chat template and processor."""
    tokenizer = train_tokenizer([QUESTION, *map(str, range(10))], 200)
    tokenizer.add_tokens([*VISION_TOKENS], special_tokens=True)
    start, image, end, video = tokenizer.convert_tokens_to_ids(list(VISION_TOKENS))
    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 512,
            "initializer_range": 0.15,
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]},
        },
        vision_config={
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_heads": 2,
            "window_size": 56,
            "fullatt_block_indexes": [1],
            "out_hidden_size": 64,
            "initializer_range": 0.15,
        },
        vision_start_token_id=start,
        image_token_id=image,
        vision_end_token_id=end,
        video_token_id=video,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Qwen2_5_VLForConditionalGeneration(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    settings = {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 14, "merge_size": 2}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))


def picture_data(folder: Path) -> dict[str, Any]:
    """The field `data` of a job on what is in the folder."""
    source = {"path": str(folder / "train.parquet"), "name": "shapes"}
    columns = {"promptColumn": "question", "imagesColumn": "images"}
    return {"train": [source], "validation": [source], **columns, "batchSize": 4}


def picture_job(folder: Path, groups: list[dict[str, Any]], **spec: Any) -> dict[str, Any]:
    """Two steps in Float64, which learn the same however they are run. The first group generates, the last trains."""
    generates, trains = groups[0]["name"], groups[-1]["name"]
    job = comparable_job(
        folder,
        groups,
        2,
        **{"data": picture_data(folder), "rewards": [{"name": "varied", "run": "seen:reward"}]} | spec,
    )
    stages = job["spec"]["dag"]["stages"]
    look = {"run": "seen:look", "after": ["rollout"], "reads": ["images"], "writes": ["looked"]}
    stages.append({"name": "look", **look, "group": generates})
    note = next(stage for stage in stages if stage["name"] == "note")
    note |= {"run": "seen:note", "group": trains}
    job["spec"]["training"]["tokensPerMicroBatch"] = 160
    return job


def patches_made(folder: Path) -> list[dict[str, str]]:
    """By process that made some: the digest of the patches of each picture, by that of its bytes."""
    files = sorted(folder.glob("patches-*"))
    return [dict(json.loads(line) for line in file.read_text().splitlines()) for file in files]


def write_seeing(folder: Path) -> None:
    """`model` and `train.parquet`."""
    write_seeing_model(folder / "model")
    write_picture_data(folder)
