"""Jobs whose memory is planned and measured."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from rljob_api.loading.load import parse_job
from rljob_api.memory.model_shape import ModelShape, parse_shape
from rljob_api.planning.memory.workers import memory_of
from rljob_api.planning.plan import Plan
from rljob_api.planning.planner import plan
from rljob_api.v1alpha1 import OffloadSpec

JOB = """\
apiVersion: rljob.dev/v1alpha1
kind: RLJob
metadata: {name: memory}
spec:
  models: [{name: actor, path: model}]
  data: {train: [{path: prompts.parquet}]}
  rewards: [{name: correct, run: "rewards:correct", column: answer}]
  algorithm: {name: GRPO, groupSize: 4, kl: {coefficient: 0}}
  stop: {steps: 1}
  training: {precision: Float32, memory: {activationCheckpointing: None}}
  dataBuffer: {memory: 256Mi, deadlineSeconds: 600}
"""
GROUP_SIZE = 4


@dataclass(frozen=True, slots=True)
class PlannedCase:
    """One line."""

    fields: tuple[str, ...] = ()
    """Of the job, as `--set` has them."""
    workers: int = 1
    family: str = "qwen3"
    vocabulary: int = 8192
    key_heads: int | None = None
    """Else half of the heads."""
    offload: OffloadSpec | None = None
    """Which a plan leaves out on CPUs."""
    shows: bool = False
    """Whether prompts are one picture each, and most of a micro-batch."""


PARALLEL = "training.parallelism."
RECOMPUTED = "training.memory.activationCheckpointing=Full"
STATES = "training.optimizer.states="
SEEING = ("data.imagesColumn=images",)
TOWER = (*SEEING, "models.0.vision={train: true}")
CELL, ROWS = 28, 16
"""Pixels of a side of what a picture's token stands for, and of how many of these a picture is high."""
WAYS = {
    "as it is": PlannedCase(),
    "recomputed": PlannedCase((RECOMPUTED,)),
    "adapter": PlannedCase(("models.0.adapter={rank: 16}",)),
    "adapter, recomputed": PlannedCase(("models.0.adapter={rank: 16}", RECOMPUTED)),
    "adapter and its base as reference": PlannedCase(("models.0.adapter={rank: 16}", "algorithm.kl.coefficient=0.1")),
    "BFloat16": PlannedCase(("training.precision=BFloat16",)),
    "BFloat16, adapter": PlannedCase(("training.precision=BFloat16", "models.0.adapter={rank: 16}")),
    "states BFloat16": PlannedCase((f"{STATES}BFloat16", "training.betas=[0.9, 0.99]")),
    "states Int8": PlannedCase((f"{STATES}Int8",)),
    "optimizer on the host": PlannedCase(offload=OffloadSpec(optimizer=True)),
    "parameters on the host": PlannedCase(offload=OffloadSpec(optimizer=True, parameters=True)),
    "reference": PlannedCase(("algorithm.kl.coefficient=0.1",)),
    "reference, whole divergence": PlannedCase(("algorithm.kl={coefficient: 0.1, estimator: Full, placement: Loss}",)),
    "critic": PlannedCase(("algorithm={name: PPO, groupSize: 4, kl: {coefficient: 0}}",)),
    "data 2": PlannedCase(workers=2),
    "data 2, adapter": PlannedCase(("models.0.adapter={rank: 16}",), workers=2),
    "replicate 2": PlannedCase((f"{PARALLEL}replicate=2",), workers=2),
    "tensor 2": PlannedCase((f"{PARALLEL}tensor=2",), workers=2),
    "tensor 2, recomputed": PlannedCase((f"{PARALLEL}tensor=2", RECOMPUTED), workers=2),
    "context 2": PlannedCase((f"{PARALLEL}context=2",), workers=2),
    "context 2, ring": PlannedCase((f"{PARALLEL}context=2",), workers=2, key_heads=1),
    "experts": PlannedCase(family="qwen3_moe"),
    "experts, expert 2": PlannedCase((f"{PARALLEL}expert=2",), workers=2, family="qwen3_moe"),
    "Megatron": PlannedCase(("training.engine=Megatron",)),
    "Megatron, pipeline 2": PlannedCase(("training.engine=Megatron", f"{PARALLEL}pipeline=2"), workers=2),
    "Gemma 2": PlannedCase(family="gemma2"),
    "Gemma 3": PlannedCase(family="gemma3_text"),
    "Phi, 51,200 words": PlannedCase(family="phi", vocabulary=51_200),
    "Llama, 128,256 words": PlannedCase(family="llama", vocabulary=128_256),
    "151,936 words": PlannedCase(vocabulary=151_936),
    "Phi 3": PlannedCase(family="phi3"),
    "pictures": PlannedCase(SEEING, family="qwen2_5_vl", shows=True),
    "pictures, tower trained": PlannedCase(TOWER, family="qwen2_5_vl", shows=True),
    "pictures, data 2": PlannedCase(SEEING, family="qwen2_5_vl", shows=True, workers=2),
    "GPT-2": PlannedCase(family="gpt2"),
}


def planned(way: PlannedCase, tokens: int, path: Path) -> Plan:
    """A micro-batch is all rows of one prompt, a quarter of each the prompt; of pictures the prompt is most."""
    prompt = tokens // (1 + 3 * GROUP_SIZE)
    response = 3 * prompt
    if way.shows:
        response = tokens // (8 * GROUP_SIZE)
        prompt = 2 + ROWS * ((tokens - GROUP_SIZE * response - 2) // ROWS)
    shown = (f"data.image={{minPixels: {CELL**2}, maxPixels: {CELL**2 * prompt}}}",) if way.shows else ()
    job = parse_job(
        JOB,
        (
            f"models.0.path={path}",
            f"data.batchSize={2 * way.workers}",
            f"data.maxPromptTokens={prompt}",
            f"rollout.maxResponseTokens={response}",
            f"training.tokensPerMicroBatch={prompt + GROUP_SIZE * response}",
            f"workerGroups=[{{name: train, accelerator: {{profile: cpu, count: {way.workers}}}}}, "
            "{name: rollout, accelerator: {profile: cpu, count: 1}}]",
            *shown,
            *way.fields,
        ),
    )
    made = plan(job, shapes=shapes_of(path))
    if way.offload is None:
        return made
    engines = (engine.model_copy(update={"offload": way.offload}) for engine in made.engines)
    moved = made.model_copy(update={"engines": tuple(engines)})
    return moved.model_copy(update={"memory": memory_of(moved, shapes_of(path), {})})


def shapes_of(path: Path) -> dict[str, ModelShape]:
    shape = parse_shape(json.loads((path / "config.json").read_text()))
    assert shape is not None
    return {str(path): shape}
