"""What an update learns of rows with small and large pictures, on any ranks and in micro-batches of any size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from figures import Figure
from transformers import Qwen3VLConfig

from picture_steps.pictures import photograph
from picture_steps.rows import END, IMAGE, START, Shown, processor_of, rows_with_pictures, write_processor
from rljob_api.pipeline.meshes import Mesh
from rljob_worker.batch import Batch
from rljob_worker.engines.fsdp import FSDPEngine
from rljob_worker.engines.models import random_policy
from rljob_worker.engines.picture_reader import PictureReader
from rljob_worker.engines.tests.builders import PolicyGradient, mesh_here
from rljob_worker.engines.tests.ranks import run_fresh_ranks
from rljob_worker.engines.tests.uneven import CPU, EXACT, snapshot

WHOLE = replace(EXACT, vision_learning_rate=1e-2, tokens_per_micro_batch=100_000)
CASES = {
    "one rank, a row each": (1, replace(WHOLE, tokens_per_micro_batch=1)),
    "one rank, 700 tokens": (1, replace(WHOLE, tokens_per_micro_batch=700)),
    "one rank, 2,304 patches": (1, replace(WHOLE, patches_per_micro_batch=2304)),
    "2 ranks": (2, WHOLE),
    "2 ranks, a row each": (2, replace(WHOLE, tokens_per_micro_batch=1)),
    "4 ranks": (4, WHOLE),
    "4 ranks, gradients reduced in every micro-batch": (4, replace(WHOLE, tokens_per_micro_batch=1, held_bytes=0)),
}
GROUP_SIZE, NUM_STEPS = 2, 2


def measure(folder: Path) -> list[Figure]:
    path = _write_config(folder / "splits")
    (one,) = run_fresh_ranks(1, learn, folder / "one", path, Mesh(), WHOLE)
    figures = []
    for number, (name, (count, settings)) in enumerate(CASES.items()):
        mesh = Mesh(dp=count) if count > 1 else Mesh()
        ranks = run_fresh_ranks(count, learn, folder / f"case-{number}", path, mesh, settings)
        losses = np.sum([rank["losses"] for rank in ranks], axis=0) / count
        differences = {
            "loss": np.abs(losses - one["losses"]).max(),
            "norm of the gradient": max(np.abs(np.subtract(rank["norms"], one["norms"])).max() for rank in ranks),
            "weights": max(float((rank["weights"][key] - one["weights"][key]).abs().max())
                           for rank in ranks for key in one["weights"]),
        }  # fmt: skip
        shown = ", ".join(f"{what} {value:.1e}" for what, value in differences.items())
        print(f"  {name:48} {shown}", flush=True)
        figures.append(Figure(f"splits, {name}: largest difference", float(max(differences.values())), most=1e-12))
    return figures


def learn(rank: int, path: str, mesh: Mesh, settings: Any) -> dict[str, Any]:
    """Losses and norms of every step, weights after the last."""
    ranks = mesh_here(mesh)
    model = random_policy(path, settings.master_dtype, 0)
    engine = FSDPEngine(model, settings, CPU, ranks, reader=PictureReader.of(model, processor_of(path)))
    own = _share(path, mesh, ranks.mesh.dp_rank(rank) if mesh.dp > 1 else 0)
    metrics = [engine.update(own, PolicyGradient()) for _ in range(NUM_STEPS)]
    return {
        "losses": [step["update/loss"].value for step in metrics],
        "norms": [step["update/gradient_norm"].value for step in metrics],
        "weights": snapshot(engine),
    }


def _share(path: str, mesh: Mesh, dp_rank: int) -> Batch:
    """The groups of one copy: dealt in turn, so that of four one has text alone."""
    small, large = photograph(32, 1), photograph(768, 2)
    prompts: list[Shown] = [[3, small, 2], [large, 4], [6], [small, 1, large, 2]]
    batch = rows_with_pictures(prompts, GROUP_SIZE, 6, processor_of(path))
    return batch.take(np.flatnonzero(batch.group_ids % mesh.dp == dp_rank)) if mesh.dp > 1 else batch


def _write_config(folder: Path) -> str:
    config = Qwen3VLConfig(
        text_config={
            "vocab_size": 64,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "max_position_embeddings": 4096,
            "initializer_range": 0.15,
            "bos_token_id": 0,
            "eos_token_id": 1,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]},
        },
        vision_config={
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_heads": 2,
            "out_hidden_size": 32,
            "initializer_range": 0.15,
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0, 1],
        },
        vision_start_token_id=START,
        image_token_id=IMAGE,
        vision_end_token_id=END,
        video_token_id=END + 1,
    )
    config.save_pretrained(folder)
    write_processor(folder, patch_size=16)
    return str(folder)
