"""Jobs with pictures for a tiny Qwen2.5-VL, run in a folder of their own."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

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


class PictureRun:
    """A run in a folder of its own."""

    def __init__(self, folder: Path, job: dict[str, Any], seconds: dict[str, float] | None = None) -> None:
        """seconds: that the slow `stage` waits in every step, and the decoder for every `picture`."""
        folder.mkdir(parents=True)
        (folder / "waits.py").write_text(WAITS)
        (folder / "seconds.json").write_text(json.dumps({"stage": 0.0, "picture": 0.0} | (seconds or {})))
        (folder / "job.yaml").write_text(yaml.safe_dump(job))
        self.folder = folder
        command = [sys.executable, "-m", "rljob_worker.cli", "run", "job.yaml"]
        with (folder / "output.txt").open("w") as output:
            self.process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=output, start_new_session=True)

    def finish(self) -> None:
        if self.process.wait():
            sys.exit((self.folder / "output.txt").read_text())

    def updates(self) -> dict[int, float]:
        """When the slow stage of each step began, in seconds since the epoch."""
        path = self.folder / "updates.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return {int(step): began for step, began in map(json.loads, lines)}

    def wait_for_step(self, step: int) -> None:
        while step not in self.updates():
            if self.process.poll() is not None:
                sys.exit((self.folder / "output.txt").read_text())
            time.sleep(0.2)

    def metrics(self) -> list[dict[str, float]]:
        path = self.folder / "runs" / "pictures" / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]

    def private_bytes(self) -> int:
        """Memory of all processes of the run that no other process has."""
        lines = (line for pid in self._processes() for line in _read(pid, "smaps_rollup").decode().splitlines())
        return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("Private_Dirty", "Private_Clean")))

    def _processes(self) -> list[int]:
        pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        stats = {pid: _read(pid, "stat") for pid in pids}
        parents = {pid: int(stat.rpartition(b")")[2].split()[1]) for pid, stat in stats.items() if stat}
        known = [self.process.pid]
        for pid in known:
            known += [child for child, parent in parents.items() if parent == pid]
        return known


def _read(pid: int, name: str) -> bytes:
    """Empty for a process that has ended."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
