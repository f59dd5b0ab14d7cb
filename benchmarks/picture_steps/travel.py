"""Bytes that rows with pictures take between two hosts: of a job as it runs, and of peers with the same rows."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path

import numpy as np
from figures import Figure
from peer_venv import Venv
from planes.peers import ENVIRONMENT, VENV

from picture_steps.jobs import picture_job, start_picture_run, write_rows
from picture_steps.pictures import photograph

SIDE, MOST_PIXELS = 756, 768 * 768
PATCHES, PATCH_NUMBERS = (SIDE // 14) ** 2, 3 * 2 * 14 * 14
PEERS: Venv = VENV


def measure(model: Path, folder: Path, prompts: int, group_size: int) -> list[Figure]:
    pictures = [photograph(SIDE, seed) for seed in range(2 * prompts)]
    write_rows(folder / "rows.parquet", pictures)
    shape = {"prompts": prompts, "group_size": group_size, "most_pixels": MOST_PIXELS}
    job = picture_job(model, folder / "rows.parquet", steps=3, groups=["rollout", "train"], **shape)
    run = start_picture_run(folder / "travel", job)
    run.finish()
    ours = float(np.median([_rows_bytes(step) for step in run.metrics() if step["step"] > 0]))
    encoded = float(np.mean([len(item) for item in pictures]))
    rows = prompts * group_size
    raw = rows * PATCHES * PATCH_NUMBERS * 4
    print(f"{prompts} prompts x {group_size} rows, a picture of {SIDE} x {SIDE} each, {encoded / 1e6:.2f} MB of JPEG")
    print(f"  rljob, a step, all that crossed between its hosts   {ours / 1e6:10.2f} MB")
    for name, size in {"pixel_values of every row": raw, **_peers(rows)}.items():
        print(f"  {name:50} {size / 1e6:10.2f} MB, {size / ours:5.0f} x ours")
    return [Figure("travel: `pixel_values` of every row, over all that crossed", raw / ours, least=100)]


def _rows_bytes(step: dict[str, float]) -> float:
    edges = {name: value for name, value in step.items() if name.startswith("data/bytes_")}
    return sum(value for name, value in edges.items() if "weights" not in name)


def _peers(rows: int) -> dict[str, int]:
    """As their own code serialises them."""
    script = Path(__file__).with_name("peer_bytes.py")
    with tempfile.TemporaryDirectory() as directory:
        command = [str(PEERS.python()), str(script), str(rows), str(PATCHES), str(PATCH_NUMBERS)]
        done = subprocess.run(command, env=_environment(), cwd=directory, capture_output=True, text=True, check=True)
    result: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return result


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | ENVIRONMENT
