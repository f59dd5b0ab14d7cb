"""Two ranks of a copy that take their slices of the next version while they decode."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from rljob_api.memory.model_shape import parse_shape
from rljob_api.memory.weight_slices import WeightSlices
from rljob_api.pipeline.meshes import Mesh
from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.batch import Column
from rljob_worker.engines.models import checkpoint_tensors, random_policy
from rljob_worker.engines.models.policy_by_layers import PolicyByLayers
from rljob_worker.engines.parallel.mesh import build_meshes
from rljob_worker.engines.rollout.requests import Requests, Sampling
from rljob_worker.engines.rollout.slices import own_slices
from rljob_worker.engines.rollout.tests.subjects import CPU, END, write_model
from rljob_worker.engines.rollout.vllm.library import load_start
from rljob_worker.engines.rollout.vllm.tests.with_vllm.test_experts import LONGEST, SETTINGS, in_processes
from rljob_worker.engines.rollout.vllm.weights.reload_check import require_faithful
from rljob_worker.weights.endpoints import SliceLoader
from rljob_worker.weights.slices import kept_by, sent_parts
from rljob_worker.weights.staging import StagingTarget
from rljob_worker.weights.tests.test_staging import Source, chunks_of

SLOT_BYTES = 32 << 10


def stage_twice(rank: int, path: str) -> list[tuple[int, int, int, bool]]:
    """For each version: chunks, steps that were decoded while they came, versions meanwhile, and whether as many bytes
    came as this rank keeps."""
    for name in ("all_gather_object", "broadcast_object_list"):  # vLLM's ranks send each other objects when they start
        setattr(dist, name, getattr(distributed_c10d, name))
    pair, result = Mesh(tp=2), []
    mesh = build_meshes([pair], rank, CPU, deadline_seconds=TEST_TIMEOUT_SECONDS)[pair]
    policy = PolicyByLayers.random(path, torch.float32, 0)
    engine = load_start()(replace(SETTINGS, tensor=2), path, policy, (END,), CPU, None, mesh)
    models = {version: random_policy(path, torch.float32, seed=version) for version in (0, 1, 2)}
    slices = WeightSlices.of(parse_shape(policy.model.config.to_dict()), 2)
    tensors = {version: list(checkpoint_tensors(model.named_parameters())) for version, model in models.items()}
    source = Source({version: chunks_of(sent_parts(tensors[version], slices), SLOT_BYTES) for version in (1, 2)})
    staging = StagingTarget(SliceLoader(engine), source, kept_by(rank), CPU)
    for version in (1, 2):
        requests = four_requests(version)
        engine.submit(requests)
        staging.stage(version)
        ended = []
        for _ in source.versions[version]:
            source.give_one()
            ended.append(engine.advance(1))
        ended.append(engine.abort(requests.row_ids))
        num_steps = max(int(part.response_ids.lengths.max()) for part in ended if len(part))
        decoded_with = engine.version
        require_faithful(engine, models[version - 1], "float32", LONGEST)  # all of the next one is there
        metrics = staging.sync(version)
        require_faithful(engine, models[version], "float32", LONGEST)
        kept = sum(item.nbytes for _, item in own_slices(tensors[version], slices, rank))
        has_kept = metrics["weights/received_bytes"].value == kept
        result.append((len(source.versions[version]), num_steps, decoded_with, has_kept))
    return result


def four_requests(version: int) -> Requests:
    """Requests, of which one at least is long."""
    rows = np.arange(4 * version, 4 * version + 4)
    return Requests(
        row_ids=rows,
        turns=np.zeros(4, np.int64),
        prompts=Column.ragged([np.array([5, 7, 11])]),
        prompt_of=np.zeros(4, np.int64),
        max_tokens=np.full(4, LONGEST - 3),
        samplings=(Sampling(seed=3),),
    )


def test_ranks_decode_while_their_slices_come_and_then_compute_with_them(tmp_path: Path) -> None:
    first, second = in_processes(2, stage_twice, tmp_path, write_model(tmp_path / "model"))
    assert first == second
    for version, (num_chunks, num_steps, decoded_with, has_kept) in enumerate(first, start=1):
        assert 5 < num_chunks == num_steps and decoded_with == version - 1 and has_kept
