"""Jobs with pictures for a tiny Qwen2.5-VL, run in a folder of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from started_run import StartedRun

CPU = {"profile": "cpu", "count": 1}
QUESTION = "<image>How many discs?"
WAITS = """
import json, time
from pathlib import Path

from rljob_worker.vision import processing

SECONDS = json.loads(Path(__file__).with_name("seconds.json").read_text())
DECODE = processing.decode

def decode(encoded):
    time.sleep(SECONDS["picture"])
    return DECODE(encoded)

processing.decode = decode

def wait(batch, context):
    with Path(__file__).with_name("updates.jsonl").open("a") as file:
        file.write(json.dumps([context.step, time.time()]) + "\\n")
    time.sleep(SECONDS["stage"])
    return {"waited": [0.0] * len(batch)}

def varied(row):
    return len(set(row["response"])) / max(1, len(row["response"]))
"""
"""A stage that stands for what takes long, a decoder that waits for each picture, and rewards that differ."""


def write_rows(path: Path, pictures: Sequence[bytes]) -> None:
    """A question about each picture."""
    rows = [{"question": QUESTION, "images": [{"bytes": item, "path": None}], "answer": "#### 1"} for item in pictures]
    pq.write_table(pa.Table.from_pylist(rows), path)


def picture_job(
    model: Path, rows: Path, *, steps: int, prompts: int, group_size: int, most_pixels: int, groups: Sequence[str]
) -> dict[str, Any]:
    """The first of the worker groups generates, the last trains behind a stage that waits."""
    first, last = groups[0], groups[-1]
    wait = {"after": ["advantage"], "reads": ["advantages"], "writes": ["waited"], "group": last}
    stages = [
        {"name": "rollout", "run": "Rollout", "models": ["actor"], "group": first},
        {"name": "reward", "run": "Reward", "after": ["rollout"], "group": first},
        {"name": "advantage", "run": "Advantage", "after": ["reward"], "group": last},
        {"name": "slow", "run": "waits:wait", **wait},
        {"name": "update", "run": "UpdatePolicy", "models": ["actor"], "after": ["slow"], "group": last},
    ]
    spec = {
        "models": [{"name": "actor", "path": str(model)}],
        "data": {
            "train": [{"path": str(rows)}],
            "promptColumn": "question",
            "imagesColumn": "images",
            "image": {"minPixels": 784, "maxPixels": most_pixels},
            "applyChatTemplate": True,
            "batchSize": prompts,
            "maxPromptTokens": 16 + most_pixels // 784,
        },
        "rewards": [{"name": "varied", "run": "waits:varied"}],
        "algorithm": {"name": "GRPO", "groupSize": group_size, "kl": {"coefficient": 0.0}},
        "workerGroups": [{"name": name, "accelerator": CPU} for name in groups],
        "training": {"learningRate": 1.0e-4, "precision": "Float32"},
        "rollout": {"maxResponseTokens": 8},
        "stop": {"steps": steps},
        "dataBuffer": {"memory": "256Mi", "deadlineSeconds": 300},
        "dag": {"stages": stages},
    }
    return {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "pictures"}, "spec": spec}


def start_picture_run(folder: Path, job: dict[str, Any], seconds: Mapping[str, float] | None = None) -> StartedRun:
    """seconds: that the slow `stage` waits in every step, and the decoder for every `picture`."""
    return StartedRun(folder, job, WAITS, {"stage": 0.0, "picture": 0.0, **(seconds or {})}, "updates.jsonl")
