"""What the Plan of a job says of a worker that trains, beside what the engines of that worker take.

    python benchmarks/planned_memory.py [--ways "as it is" adapter ...] [--size 512x8] [--tokens 1024]

Each way is a job: its fields, on n workers. The engines are built of its plan as workers build them, and asked
and updated as its stages do, with rows of full length, four of each prompt. Private memory (`private_memory`) of the
worker that has most, in MiB, beyond what it had after a tiny model of the same job: `load` when models are there,
`train` at the peak of the second step. What waits on a host counts on both sides: on a CPU it is the same memory.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from picture_steps.pictures import noise
from private_memory import MIB, give_back_what_is_freed, private_bytes, watched
from sized_models import PICTURE, VISION_END, VISION_START, write_model

from rljob_api.catalogue.columns import IMAGES, computes_full_kl
from rljob_api.loading.load import parse_job
from rljob_api.memory.model_shape import ModelShape, parse_shape
from rljob_api.pipeline.meshes import Mesh
from rljob_api.planning.memory import memory_of
from rljob_api.planning.plan import EnginePlan, Plan
from rljob_api.planning.planner import plan
from rljob_api.v1alpha1 import OffloadSpec
from rljob_worker.batch import Batch, Column
from rljob_worker.engines.fsdp import FSDPEngine
from rljob_worker.engines.models import ValueModel
from rljob_worker.engines.parallel.mesh import ProcessMesh, alone, build_meshes
from rljob_worker.engines.protocols import ScoringEngine
from rljob_worker.engines.registry import build_base, build_train_engine
from rljob_worker.engines.tests.builders import Distillation, PolicyGradient, ValueRegression
from rljob_worker.engines.tests.ranks import run_fresh_ranks
from rljob_worker.vision.pictures import PictureList

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
  dataBuffer: {memory: 8Gi}
"""
GROUP_SIZE = 4
DEADLINE_SECONDS = 1800
CPU = torch.device("cpu")
HEAD = (
    "| model | way | workers | load: plan | measured | | train: plan | measured | |",
    "|---|---|--:|--:|--:|--:|--:|--:|--:|",
)


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
            f"workerGroups=[{{name: train, accelerator: {{profile: cpu, count: {way.workers}}}}}, {{name: rollout}}]",
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


def estimate(made: Plan) -> tuple[float, float]:
    phases = {phase.phase: phase for group in made.memory if group.group == "train" for phase in group.phases}
    # gradients come to the host when those that added up are gone
    waiting = phases["load"].host
    return (phases["load"].peak + waiting) / MIB, (phases["train"].peak + waiting) / MIB


def measure(rank: int, tiny: Plan, made: Plan) -> tuple[float, float]:
    """MiB when models are there, and at the peak of a step."""
    give_back_what_is_freed()
    step(tiny, built(tiny, rank))
    gc.collect()
    before = private_bytes()
    engines = built(made, rank)
    loaded = private_bytes() - before
    step(made, engines)
    start = private_bytes() - before
    with watched() as peak:
        step(made, engines)
    return loaded / MIB, (start + peak.beyond) / MIB


def built(made: Plan, rank: int) -> list[tuple[EnginePlan, ScoringEngine]]:
    """As a worker does, what is trained last."""
    own = [engine for engine in made.engines if engine.group == "train" and engine.kind == "Train"]
    meshes = _meshes(own, rank)
    trained = {
        item.name: build_train_engine(made, item, CPU, meshes[item.mesh]) for item in own if item.base_of is None
    }
    bases = {item.name: build_base(trained[item.base_of]) for item in own if item.base_of is not None}
    engines: dict[str, ScoringEngine] = {**trained, **bases}
    return sorted(((item, engines[item.name]) for item in own), key=lambda item: item[0].trainable)


def _meshes(own: list[EnginePlan], rank: int) -> dict[Mesh, ProcessMesh]:
    meshes = [item.mesh for item in own]
    if meshes[0].size == 1:
        return {mesh: alone(CPU) for mesh in meshes}
    return build_meshes(meshes, rank, CPU, deadline_seconds=60)


def step(made: Plan, engines: list[tuple[EnginePlan, ScoringEngine]]) -> None:
    """What is only asked, critics, and the policy last."""
    batch, reference = rows(made), None
    for planned, engine in engines:
        if not planned.trainable:
            engine.log_probs(batch)
            reference = engine
            continue
        assert isinstance(engine, FSDPEngine)
        if isinstance(engine.model, ValueModel):
            engine.values(batch)
            engine.update(batch, ValueRegression())
        elif computes_full_kl(made.spec):
            engine.update(batch, Distillation(), reference=reference)
        else:
            engine.update(batch, PolicyGradient())


def rows(made: Plan) -> Batch:
    """Rows of one data-parallel replica, all of the full length."""
    spec, rng = made.spec, np.random.default_rng(0)
    count = spec.mini_batch_rows // made.trainer_of("actor").mesh.dp
    prompt, response = spec.data.max_prompt_tokens, spec.rollout.max_response_tokens
    groups = np.arange(count) // GROUP_SIZE
    num_groups = count // GROUP_SIZE
    prompts = rng.integers(6, 1000, (num_groups, prompt))
    pictures = {}
    if spec.sees:
        prompts[:] = [VISION_START, *[PICTURE] * (prompt - 2), VISION_END]
        pictures = {IMAGES: _pictures(num_groups, prompt - 2)}
    responses = Column.ragged(list(rng.integers(6, 1000, (count, response))))
    columns = {
        "prompt_ids": Column.ragged([prompts[group] for group in groups]),
        "response_ids": responses,
        "advantages": Column.from_lengths(np.ones(count * response), responses.lengths),
        "weight": Column.fixed(np.ones(count)),
        **pictures,
    }
    return Batch.build(np.arange(count), groups, columns, np.full(count, prompt + response))


def _pictures(num_groups: int, tokens: int) -> Column:
    """One picture of so many tokens for each group."""
    width = tokens // ROWS * CELL
    blobs = [PictureList.pack([noise(ROWS * CELL, width, seed)]) for seed in range(num_groups)]
    return Column.binary(blobs).per_group_at(np.arange(num_groups) * GROUP_SIZE, num_groups * GROUP_SIZE)


def line(name: str, options: argparse.Namespace, folder: Path) -> str:
    way, (hidden, layers) = WAYS[name], map(int, options.size.split("x"))
    written = partial(run_fresh_ranks, 1, write_model, folder / "writing")
    shape = way.vocabulary, way.key_heads, way.family
    written(256, 2, shape[0], folder / "tiny", *shape[1:])
    (count,) = written(hidden, layers, shape[0], folder / "model", *shape[1:])
    tiny, made = planned(way, 104, folder / "tiny"), planned(way, options.tokens, folder / "model")
    ranks = run_fresh_ranks(way.workers, measure, folder / "run", tiny, made, deadline_seconds=DEADLINE_SECONDS)
    result = [max(item) for item in zip(*ranks, strict=True)]
    cells = " | ".join(f"{e:.0f} | {f:.0f} | {e / f - 1:+.0%}" for e, f in zip(estimate(made), result, strict=True))
    return f"| {way.family}, {count / 1e6:.0f} M | {name} | {way.workers} | {cells.replace('-', '−')} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS), metavar="WAY")
    parser.add_argument("--size", default="512x8")
    parser.add_argument("--tokens", type=int, default=1024, help="of a micro-batch, about")
    options = parser.parse_args()
    print(*HEAD, sep="\n")
    for name in options.ways:
        with tempfile.TemporaryDirectory() as folder:
            print(line(name, options, Path(folder)), flush=True)


if __name__ == "__main__":
    main()
