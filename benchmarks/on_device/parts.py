"""One measurement each, on whatever device there is."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from even_rows import even_rows

from on_device.device_memory import finish, free, taken
from on_device.shapes import END, DeviceModel, draw, update_flops
from rljob_api.memory.parallel_layout import ParallelLayout
from rljob_api.memory.training import update_memory
from rljob_api.memory.weight_slices import WeightSlices
from rljob_worker.batch import Batch
from rljob_worker.engines.fsdp import FSDPEngine, TrainSettings
from rljob_worker.engines.fsdp.settings import DTYPES
from rljob_worker.engines.log_probs import linear
from rljob_worker.engines.log_probs.fused import FUSED
from rljob_worker.engines.models import empty_policy
from rljob_worker.engines.rollout.generate import generate
from rljob_worker.engines.rollout.requests import Sampling
from rljob_worker.engines.rollout.transformers import TransformersRollout
from rljob_worker.engines.rollout.transformers.static_steps import CUDAGraphs, Step
from rljob_worker.engines.tests.builders import PolicyGradient
from rljob_worker.weights.endpoints import InProcessEndpoint


@dataclass(frozen=True, slots=True)
class DeviceSetup:
    """Where and how much."""

    device: torch.device
    precision: str
    rows: int
    """That generate, 8 of a group."""
    prompt: int
    response: int
    """Tokens of a row that is trained; a quarter of it is generated."""
    rounds: int

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.precision]


ON_DEVICE = DeviceSetup(torch.device("cuda"), "BFloat16", rows=64, prompt=256, response=768, rounds=3)
REHEARSAL = DeviceSetup(torch.device("cpu"), "Float32", rows=8, prompt=8, response=24, rounds=1)


def _as_it_is(step: Step) -> Step:
    """In the place of a device that records."""
    return step


@dataclass(frozen=True, slots=True)
class Generation:
    """Measurements of generating with one model in one way."""

    tokens_per_second: float
    first_seconds: float
    """Of the first generation, in which steps are recorded and kernels chosen."""
    memory: int | None
    freed: int | None
    """What sleep gives back, cache and weights."""


def generation(model: DeviceModel, place: DeviceSetup, *, graphs: bool) -> Generation:
    """Responses of equal length: the end token is never drawn."""
    device = place.device
    record = None if not graphs else CUDAGraphs(device) if device.type == "cuda" else _as_it_is
    with taken(device) as memory:
        policy = model.policy(place.dtype, device)
        engine = TransformersRollout(policy, device, (), owns_weights=True, record=record)
        words = np.random.default_rng(0).integers(END + 1, model.shape.vocabulary, (place.rows // 8, place.prompt))

        def once() -> float:
            finish(device)
            start = time.perf_counter()
            generate(engine, list(words), Sampling(seed=1), np.arange(place.rows), 8, place.response // 4)
            finish(device)
            return time.perf_counter() - start

        first = once()
        seconds = statistics.median(once() for _ in range(place.rounds))
    before = free(device)
    engine.sleep("Weights")
    after = free(device)
    freed = None if before is None or after is None else after - before
    return Generation(place.rows * (place.response // 4) / seconds, first, memory.most, freed)


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to make the same update."""

    name: str
    settings: TrainSettings = TrainSettings()
    kernel: bool = False
    """Whether the last layer is Liger's kernel, where there is one."""
    chunk_elements: int | None = None
    """Logits in memory at once; None: as many as the device has room for."""
    kept_chunks: int = linear.KEPT_CHUNKS
    deterministic: bool = False

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """The process computes in this way."""
        FUSED._is_missing = not self.kernel
        before = linear.CHUNK_ELEMENTS, linear.KEPT_CHUNKS
        linear.CHUNK_ELEMENTS, linear.KEPT_CHUNKS = self.chunk_elements, self.kept_chunks
        torch.use_deterministic_algorithms(self.deterministic, warn_only=True)
        try:
            yield
        finally:
            linear.CHUNK_ELEMENTS, linear.KEPT_CHUNKS = before
            torch.use_deterministic_algorithms(False)


VARIANTS = (
    Variant("chunks of logits"),
    Variant("chunks of 16 Mi logits, none kept", chunk_elements=1 << 24, kept_chunks=0),
    Variant("whole logits", chunk_elements=1 << 62),
    Variant("Liger's kernel", kernel=True),
    Variant("layers computed again in the backward pass", TrainSettings(activation_checkpointing=True)),
    Variant("layers compiled", TrainSettings(compile=True)),
    Variant("optimizer offloaded", TrainSettings(offload_optimizer=True)),
    Variant("Int8 states", TrainSettings(states="Int8")),
    Variant("deterministic", deterministic=True),
)
"""A setting that is to be compared is one line here."""


@dataclass(frozen=True, slots=True)
class Updated:
    """Measurements of updates in one variant."""

    tokens_per_second: float
    flops_per_second: float
    kept: int | None
    """Weights and optimizer, in bytes."""
    peak: int | None
    kept_estimate: int
    peak_estimate: int


def update(model: DeviceModel, place: DeviceSetup, variant: Variant) -> Updated:
    """Two micro-batches, rows of one length without shared prompts."""
    row = place.prompt + place.response
    tokens = row * max(2, 16_384 // row // 2 * 2) if place.device.type == "cuda" else 4 * row
    settings = replace(variant.settings, precision=place.precision, tokens_per_micro_batch=tokens // 2)
    batch = rows(model, place, tokens // row)
    with taken(place.device) as loading:
        engine = FSDPEngine(empty_policy(model.path, settings.master_dtype), settings, place.device)
        draw(engine.model)
    with variant.in_force(), taken(place.device) as training:
        engine.update(batch, PolicyGradient())
        engine.update(batch, PolicyGradient())
        seconds = median(lambda: engine.update(batch, PolicyGradient()), place)
    responses = tokens * place.response // row
    flops = update_flops(model.shape, tokens, responses, context=row / 2)
    kept, peak = estimate(model, settings, tokens // 2, responses // 2, place.device)
    return Updated(tokens / seconds, flops / seconds, loading.most, training.most, kept, peak)


def estimate(
    model: DeviceModel, settings: TrainSettings, tokens: int, responses: int, device: torch.device
) -> tuple[int, int]:
    """What a plan says of a worker: bytes after loading, and at the peak of an update of two micro-batches."""
    stored, computed = settings.master_dtype.itemsize, settings.dtype.itemsize
    on_cpu, logits = device.type == "cpu", linear.at_once(device)
    layout = ParallelLayout(
        model.shape, 1, stored, computed, on_cpu=on_cpu, logits_elements=logits, fuses_norms=not on_cpu
    )
    kept = layout.shard + layout.optimizer
    result = update_memory(layout, tokens, responses, 2, recompute=settings.activation_checkpointing)
    return kept, kept + layout.gathered + result.peak


def rows(model: DeviceModel, place: DeviceSetup, count: int) -> Batch:
    return even_rows(count, place.prompt, place.response, END + 1, model.shape.vocabulary)


def sync(model: DeviceModel, place: DeviceSetup) -> tuple[float, int]:
    """Seconds of a sync from the engine that trains to the one that generates, and bytes of the weights."""
    settings = TrainSettings(precision=place.precision)
    train = FSDPEngine(empty_policy(model.path, settings.master_dtype), settings, place.device)
    draw(train.model)
    rollout = TransformersRollout(model.policy(place.dtype, place.device), place.device, (), owns_weights=True)
    way = InProcessEndpoint(train, rollout, WeightSlices(), 0)
    way.sync(1)
    return median(lambda: way.sync(2), place), sum(parameter.nbytes for parameter in rollout.model.parameters())


def median(work: Callable[[], object], place: DeviceSetup) -> float:
    """Seconds."""

    def once() -> float:
        finish(place.device)
        start = time.perf_counter()
        work()
        finish(place.device)
        return time.perf_counter() - start

    return statistics.median(once() for _ in range(place.rounds))
