"""Mini-batches of which copies have uneven shares: what a policy and a critic learn of them, and how to compare it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from rljob_api.pipeline.meshes import Mesh
from rljob_worker.batch import Batch
from rljob_worker.engines.fsdp import FSDPEngine, TrainSettings
from rljob_worker.engines.fsdp.layers import TRANSFORMERS, Layers
from rljob_worker.engines.models import random_policy, random_value_model
from rljob_worker.engines.parallel.mesh import ProcessMesh
from rljob_worker.engines.tests.builders import Distillation, PolicyGradient, ValueRegression, a_batch
from rljob_worker.metrics.scalars import Scalar, Scalars

CPU = torch.device("cpu")
EXACT = TrainSettings(
    temperature=0.8,
    precision="Float64",
    learning_rate=1e-2,
    tokens_per_micro_batch=14,
    max_grad_norm=0.5,
    min_unit_bytes=0,  # every layer a unit of its own; below the whole model is one
)
LENGTHS = [[5, 1, 9, 3, 7, 2], [4, 8], [6, 2, 0]]
"""Responses of three mini-batches. The second copy has no row of the second, and of the third an empty one."""
FIRST_COPY = [4, 2, 2]
"""Rows of the first copy, of each. The second has the rest, and others have none."""

Weights = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Learnt:
    """By one rank: three updates of a policy, one of a critic, three that draw the policy towards a reference."""

    policy: FSDPEngine
    critic: FSDPEngine
    metrics: list[Scalars]
    """Of each update; a copy's leader has them."""


def learn(path: str, settings: TrainSettings, ranks: ProcessMesh, layers: Layers = TRANSFORMERS) -> Learnt:
    dtype, frozen = settings.master_dtype, replace(settings, trainable=False)
    policy = FSDPEngine(random_policy(path, dtype, 0), settings, CPU, ranks, layers=layers)
    critic = FSDPEngine(random_value_model(path, dtype, 0), settings, CPU, ranks, layers=layers)
    reference = FSDPEngine(random_policy(path, dtype, 7), frozen, CPU, ranks, layers=layers)
    batches = [share(index, ranks) for index in range(len(LENGTHS))]
    metrics = [policy.update(batch, PolicyGradient()) for batch in batches]
    metrics.append(critic.update(batches[0], ValueRegression()))
    metrics += [policy.update(batch, Distillation(), reference=reference) for batch in batches]
    return Learnt(policy, critic, metrics if ranks.is_leader else [{} for _ in metrics])


def share(index: int, ranks: ProcessMesh) -> Batch:
    """The rows of a mini-batch that this rank's copy has: the first and the last have some, which are of different
    replicas where there are several."""
    batch, first = a_batch(LENGTHS[index]), FIRST_COPY[index]
    rows = np.arange(len(batch))
    if ranks.mesh.dp == 1:
        return batch
    return batch.take({0: rows[:first], ranks.mesh.dp - 1: rows[first:]}.get(ranks.mesh.dp_rank(ranks.rank), rows[:0]))


def snapshot(engine: FSDPEngine) -> Weights:
    return {name: tensor.clone() for name, tensor in engine.weights(dtype=engine.settings.master_dtype)}


def merged(ranks: list[dict[str, Any]], index: int, name: str) -> float:
    """A metric of one update over all ranks."""
    return Scalar.merge([rank["metrics"][index][name] for rank in ranks if name in rank["metrics"][index]]).value


def seen(learnt: Learnt, ranks: ProcessMesh) -> dict[str, Any]:
    """What one rank saw, and the weights that it ended with."""
    return {
        "metrics": learnt.metrics,
        "log_probs": learnt.policy.log_probs(share(0, ranks)).values,
        "values": learnt.critic.values(share(0, ranks)).values,
        "weights": snapshot(learnt.policy),
        "critic": snapshot(learnt.critic),
    }


def assert_trained_alike(ranks: list[dict[str, Any]], mesh: Mesh, one: dict[str, Any]) -> None:
    """What all ranks saw, and one that has the whole model."""
    for index in range(len(one["metrics"])):
        for name in ("update/loss", "update/gradient_norm", *(["entropy"] if index < 3 else [])):
            assert merged(ranks, index, name) == pytest.approx(merged([one], index, name), abs=1e-12), (index, name)
    for rank in ranks:
        assert_close(rank["weights"], one["weights"], 1e-12)
        assert_close(rank["critic"], one["critic"], 1e-12)
    for kind in ("log_probs", "values"):
        copies = [rank[kind] for index, rank in enumerate(ranks) if mesh.is_row_leader(index)]
        np.testing.assert_allclose(np.concatenate(copies), one[kind], atol=1e-6)
        for index, rank in enumerate(ranks):
            np.testing.assert_array_equal(rank[kind], copies[mesh.dp_rank(index)])


def assert_close(result: Weights, expected: Weights, tolerance: float) -> None:
    """tolerance: absolute."""
    assert result.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(
            result[name].detach(), tensor.detach(), atol=tolerance, rtol=0, msg=lambda m, n=name: f"{n}: {m}"
        )
