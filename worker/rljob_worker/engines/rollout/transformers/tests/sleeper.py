"""A process with an engine of its own: what sleep gives back to the kernel, as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch

from rljob_worker.engines.models import random_policy
from rljob_worker.engines.rollout.generate import generate
from rljob_worker.engines.rollout.requests import Sampling
from rljob_worker.engines.rollout.transformers import TransformersRollout


def private_bytes() -> int:
    """Of this process alone."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_Dirty"))


def main(path: str) -> None:
    device = torch.device("cpu")
    engine = TransformersRollout(random_policy(path, torch.float32, 0), device, (), owns_weights=True)
    weights = [(name, each.clone()) for name, each in engine.model.named_parameters()]
    found = []
    for version in (1, 2):
        engine.load_weights(weights, version)
        # 800 rows of 200 tokens that are written, and end with their first token
        generate(engine, [np.arange(200) % 40], Sampling(), np.arange(800), 800, 1)
        before, held = private_bytes(), engine.held_bytes("Weights")
        engine.sleep("Weights")
        found.append({"held": held, "freed": before - private_bytes(), "left": engine.held_bytes("Weights")})
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
