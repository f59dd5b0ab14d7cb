"""How far a model is from what drew its tokens: one number, however copies, tokens, matrices and layers are spread."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rljob_api.pipeline.meshes import Mesh
from rljob_api.v1alpha1.algorithm import AlgorithmSpec
from rljob_worker.algorithms import policy_objective
from rljob_worker.batch import Batch, Column
from rljob_worker.engines.fsdp import FSDPEngine
from rljob_worker.engines.fsdp.layers import TRANSFORMERS
from rljob_worker.engines.megatron.library import megatron_layers
from rljob_worker.engines.models import random_policy
from rljob_worker.engines.tests.builders import a_batch, mesh_here, some_slow, write_config
from rljob_worker.engines.tests.ranks import run_ranks
from rljob_worker.engines.tests.uneven import CPU, EXACT
from rljob_worker.metrics.scalars import Scalars, merge_all

LENGTHS = [5, 1, 9, 3, 7, 2]
MESHES = [Mesh(dp=2), Mesh(cp=2), Mesh(tp=2), Mesh(dp=2, cp=2)]
SHARED = replace(EXACT, tokens_per_micro_batch=7)
STAGES = [Mesh(pp=2), Mesh(dp=2, pp=2), Mesh(pp=2, tp=2)]
"""Their leaders have the first layers, and receive what came out of the last. Megatron's, as stages are."""
NAMES = ("k1", "k3", "ratio_max", "probs_diff", "probs_diff_max")


def drawn() -> Batch:
    """Rows that something else drew; every fourth token is an observation."""
    batch, draw, total = a_batch(LENGTHS), np.random.default_rng(5), sum(LENGTHS)
    columns = {"response_mask": np.arange(total) % 4 > 0, "rollout_log_probs": -draw.exponential(size=total) - 2.0}
    return batch.with_columns({name: Column.from_lengths(values, LENGTHS) for name, values in columns.items()})


def reported_metrics(rank: int, path: str, mesh: Mesh) -> Scalars:
    """By the leaders of copies, of which the first has four rows."""
    ranks, batch = mesh_here(mesh), drawn()
    if mesh.dp > 1:
        batch = batch.take([np.arange(4), np.arange(4, 6)][mesh.dp_rank(rank)])
    algorithm = AlgorithmSpec.model_validate({"name": "GRPO", "kl": {"coefficient": 0.0}})
    objective = policy_objective(algorithm, max_response_tokens=9, has_old_log_probs=False).reporting_mismatch()
    layers = megatron_layers(CPU) if mesh.pp > 1 else TRANSFORMERS
    engine = FSDPEngine(random_policy(path, SHARED.master_dtype, 0), SHARED, CPU, ranks, layers=layers)
    metrics = engine.update(batch, objective)
    assert metrics["update/micro_batches"].value > 1
    return {name: scalar for name, scalar in metrics.items() if name.startswith("mismatch/") and ranks.is_leader}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_config(tmp_path_factory.mktemp("model"), "qwen3")


@pytest.mark.parametrize(
    "mesh", some_slow([*MESHES, *STAGES], Mesh(dp=2, cp=2), Mesh(tp=2), Mesh(dp=2, pp=2), Mesh(pp=2, tp=2)), ids=str
)
def test_spread_models_tell_what_a_whole_one_does(tmp_path: Path, path: str, mesh: Mesh) -> None:
    batch = drawn()
    engine = FSDPEngine(random_policy(path, EXACT.master_dtype, 0), EXACT, CPU)
    actions = batch["response_mask"].values.astype(bool)
    ours, theirs = engine.log_probs(batch).values[actions], batch["rollout_log_probs"].values[actions]
    x = ours - theirs
    by_hand = (-x.mean(), (np.exp(x) - 1 - x).mean(), np.exp(x).max())
    apart = np.abs(np.exp(ours) - np.exp(theirs))
    result = merge_all(run_ranks(mesh.size, reported_metrics, tmp_path / "ranks", path, mesh))
    assert [result[f"mismatch/{name}"].value for name in NAMES] == pytest.approx(
        [*by_hand, apart.mean(), apart.max()], rel=1e-5
    )
