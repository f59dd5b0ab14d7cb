"""Private memory of the workers of a job, in MiB, phase by phase. Weights go from one group to the other through data
buffers, which are processes, as in a job."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import numpy as np
from private_memory import MIB, give_back_what_is_freed, private_bytes, watched

from planned_phases.cases import GROUP_SIZE
from planned_phases.rows import rows
from planned_phases.training import CPU, built, step
from rljob_api.catalogue.columns import IMAGES
from rljob_api.planning.plan import Plan
from rljob_worker.databuffer.tests.gang import Gang, as_processes
from rljob_worker.engines.parallel.mesh import alone
from rljob_worker.engines.registry import build_rollout_engine
from rljob_worker.engines.rollout.generate import generate
from rljob_worker.engines.rollout.protocol import RolloutEngine
from rljob_worker.engines.rollout.requests import Sampling
from rljob_worker.engines.tests.ranks import run_fresh_ranks
from rljob_worker.weights.buffers import BufferTransport
from rljob_worker.weights.slices import slices_of
from rljob_worker.weights.sync import WeightSync, build_weight_sync

DEADLINE_SECONDS = 1800
Sizes = dict[str, float]
"""By phase, MiB."""


def measure(tiny: Plan, made: Plan, folder: Path) -> dict[str, Sizes]:
    """By worker group; of the worker that has most, beyond what it had after the job of a tiny model."""
    with ExitStack() as stack:
        gangs = [stack.enter_context(_gang(plan)) for plan in (tiny, made)]
        workers = {group.name: group.num_workers for group in made.groups}
        pool = stack.enter_context(ThreadPoolExecutor(len(workers)))
        asked = {
            name: pool.submit(
                run_fresh_ranks, count, WORK[name], folder / name, *gangs, deadline_seconds=DEADLINE_SECONDS
            )
            for name, count in workers.items()
        }
        results = {name: asked.result() for name, asked in asked.items()}
    return {name: {phase: max(rank[phase] for rank in ranks) for phase in ranks[0]} for name, ranks in results.items()}


@contextmanager
def _gang(plan: Plan) -> Iterator[Gang]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory, as_processes(plan, Path(directory)) as gang:
        yield Gang(plan, gang.directory)


def train(rank: int, tiny: Gang, made: Gang) -> Sizes:
    """A worker of the group that trains: when models are there, in a step, and while it sends weights."""
    return _phases("train", partial(_training, rank), tiny, made)


def rollout(rank: int, tiny: Gang, made: Gang) -> Sizes:
    """A worker of the group that generates: when the model is there, while it generates, and while weights come."""
    return _phases("generate", partial(_generating, rank), tiny, made)


WORK = {"train": train, "rollout": rollout}
Parts = tuple[WeightSync, Callable[[], None]]
"""Weights, and what the worker does in a step."""


def _phases(name: str, build: Callable[[Gang], Parts], tiny: Gang, made: Gang) -> Sizes:
    """The second step of each phase: in the first what is imported on the way comes along."""
    give_back_what_is_freed()
    _two_steps(*build(tiny))
    gc.collect()
    before = private_bytes()
    parts = build(made)
    loaded = private_bytes() - before
    peaks = _two_steps(*parts)
    sizes = {"load": loaded, name: peaks[0] - before, "sync": peaks[1] - before}
    return {phase: size / MIB for phase, size in sizes.items()}


def _two_steps(weights: WeightSync, work: Callable[[], None]) -> list[int]:
    """The most bytes in the second step, and while the weights of the second version go."""
    weights.open("")
    weights.sync(1)
    work()
    peaks = []
    for call in (work, partial(weights.sync, 2)):
        start = private_bytes()
        with watched() as peak:
            call()
        peaks.append(start + peak.beyond)
    weights.close()
    return peaks


def _training(rank: int, gang: Gang) -> Parts:
    made, engines = gang.plan, built(gang.plan, rank)
    batch = rows(made, made.spec.mini_batch_rows // made.trainer_of("actor").mesh.dp)
    trained = {item.model: engine for item, engine in engines if item.trainable}
    return _sync(gang, "train", rank, trained, {}), lambda: step(made, engines, batch)


def _generating(rank: int, gang: Gang) -> Parts:
    made = gang.plan
    (planned,) = (item for item in made.engines if item.kind == "Rollout")
    engine = build_rollout_engine(made, planned, CPU, None, alone(CPU))
    batch = rows(made, made.spec.num_rows)
    heads = np.unique(batch.index.heads())
    prompts = [batch["prompt_ids"].row(int(head)) for head in heads]
    pictures = batch.column_of(IMAGES, heads) if IMAGES in batch else None
    most = made.spec.rollout.max_response_tokens

    def work() -> None:
        generate(engine, prompts, Sampling(seed=1), batch.row_ids, GROUP_SIZE, most, pictures=pictures)

    return _sync(gang, "rollout", rank, {}, {planned.model: engine}), work


def _sync(
    gang: Gang, group: str, rank: int, trained: Mapping[str, object], generating: Mapping[str, RolloutEngine]
) -> WeightSync:
    transports = {"DataBuffer": BufferTransport(gang.client(group, rank))}
    return build_weight_sync(gang.plan, group, rank, transports, trained, generating, slices_of(gang.plan), CPU)
