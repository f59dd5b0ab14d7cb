"""What the workers of a plan have in memory, where shapes of their models are at hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Literal

from rljob_api.catalogue.rollout_engines import ROLLOUT_ENGINES
from rljob_api.memory.activations import logits_bytes, scores_bytes
from rljob_api.memory.generation import draw_bytes, row_cache_bytes
from rljob_api.memory.model_shape import Shapes
from rljob_api.memory.phases import LEAST_ASLEEP_BYTES, GroupMemory, PhaseMemory
from rljob_api.memory.sizes import ATTENDED, NUMBER_BYTES
from rljob_api.memory.training import UpdateMemory, update_memory
from rljob_api.planning.memory.layouts import largest_of, packs_of
from rljob_api.planning.memory.limits import Limits
from rljob_api.planning.memory.models import WorkerModels
from rljob_api.planning.memory.towers import (
    pictures_of_update,
    prompt_picture_bytes,
    tower_bytes,
    tower_state_bytes,
    video_bytes,
    video_encoder_bytes,
)
from rljob_api.planning.memory.transfers import delta_bytes, next_slices_bytes, received_on_host, sent_bytes
from rljob_api.planning.plan import EnginePlan, Plan
from rljob_api.planning.weights.versions import warm_up_steps
from rljob_api.v1alpha1 import RLJobSpec


def memory_of(plan: Plan, shapes: Shapes, limits: Limits) -> tuple[GroupMemory, ...]:
    """Every group that has engines, in the order of the plan."""
    result = []
    for group in plan.groups:
        engines = [engine for engine in plan.engines if engine.group == group.name]
        unknown = tuple(dict.fromkeys(_unknown(plan, engines, shapes)))
        if unknown:
            result.append(GroupMemory(group=group.name, unknown=unknown))
        elif engines:
            stages = largest_of(max(engine.mesh.pp for engine in engines), [shapes[engine.path] for engine in engines])
            limit = limits.get(group.name)
            workers = [_Worker(WorkerModels(plan, group, shapes, limit, stage)) for stage in stages]
            phases = zip(*(worker.phases() for worker in workers), strict=True)
            room = None if limit is None else limit.usable
            result.append(GroupMemory(group=group.name, room=room, phases=tuple(map(_most, phases))))
    return tuple(result)


def _unknown(plan: Plan, engines: Sequence[EnginePlan], shapes: Shapes) -> Iterator[str]:
    """Paths of models, and of what encodes videos, whose shape is not at hand."""
    encoder = video_encoder(plan.spec)
    for engine in engines:
        if engine.path not in shapes:
            yield engine.path
        elif encoder is not None and engine.kind == "Rollout" and shapes[engine.path].videos is None:
            yield encoder


def video_encoder(spec: RLJobSpec) -> str | None:
    """The path of the model that encodes videos in workers; None where none does."""
    simulator = spec.rollout.simulator
    return None if simulator is None or simulator.video is None else simulator.video.path


def _most(phases: tuple[PhaseMemory, ...]) -> PhaseMemory:
    """One phase, of the worker that has most; with what waits on the host where that is most."""
    return max(phases, key=lambda item: item.peak).model_copy(update={"host": max(phase.host for phase in phases)})


@dataclass(frozen=True)
class _Worker:
    """What one worker has in each phase."""

    models: WorkerModels

    def phases(self) -> Iterator[PhaseMemory]:
        """After the load with the slices of the next version, where they come ahead: if the job says so, and by default
        on an accelerator with room for them beside all else."""
        models, (load, *others) = self.models, self._phases()
        if staged := next_slices_bytes(models):
            beside = [self._with_staged(phase, staged) for phase in others]
            room = 0 if models.on_cpu or models.limit is None else models.limit.usable
            if models.plan.spec.weight_sync.staging == "Device" or max(phase.peak for phase in beside) <= room:
                others = beside
        yield from (load, *others)

    def _with_staged(self, phase: PhaseMemory, staged: int) -> PhaseMemory:
        """Beside all that engines take of what those that train leave, whatever they need of it."""
        models, taken = self.models, 0
        reserves = any(ROLLOUT_ENGINES[engine.library].reserves_memory for engine in models.generating)
        if reserves and models.limit is not None and not models.on_cpu:
            before = sum(models.layout(engine).kept + tower_bytes(models, engine) for engine in models.training)
            before += sum(models.copy(engine) for engine in models.generating)
            taken = before + int((models.limit.bytes - before) * models.plan.spec.rollout.memory_fraction)
        return phase.model_copy(update={"staged": staged, "peak": max(phase.peak, taken) + staged})

    def _phases(self) -> Iterator[PhaseMemory]:
        models = self.models
        optimizer = sum(models.layout(engine).optimizer_kept for engine in models.training if engine.trainable)
        weights = sum(models.layout(engine).kept for engine in models.training)
        weights += sum(models.copy(engine) for engine in models.generating)
        weights += sum(tower_bytes(models, engine) for engine in models.here)
        optimizer += sum(tower_state_bytes(models, engine) for engine in models.training)
        host = sum(models.layout(engine).host(trainable=engine.trainable) for engine in models.training)
        if models.on_cpu:
            weights += video_encoder_bytes(models)
        else:
            host += video_encoder_bytes(models)
        kept = PhaseMemory(phase="load", weights=weights, optimizer=optimizer, peak=weights + optimizer, host=host)
        asleep = self._training_asleep(kept) if models.generating else kept
        # optimizers sleep before copies that generate are built
        most = max(asleep.peak, kept.peak - sum(models.copy(engine) for engine in models.generating))
        host += asleep.host - kept.host + sum(map(self._read_on_host, models.generating))
        yield kept.model_copy(update={"peak": most, "host": host})
        delta = delta_bytes(models)
        kept, asleep = _beside(kept, "delta", delta), _beside(asleep, "delta", delta)
        if models.generating:
            yield self._while_written(self._generate(asleep))
        if models.training:  # what has slept keeps its memory of the host
            awake = kept.model_copy(update={"host": asleep.host})
            yield self._while_written(self._train(self._generating_asleep(awake)))
        if any(models.group.name in self._ends(edge.source, edge.target) for edge in models.plan.weights):
            yield self._while_written(self._sync(asleep))
        if self._checkpoint:
            yield self._with_checkpoint(asleep.model_copy(update={"phase": "checkpoint"}))

    def _while_written(self, phase: PhaseMemory) -> PhaseMemory:
        """With the copy of an earlier step's checkpoint, which is written meanwhile; after the last step none is."""
        spec = self.models.plan.spec
        others = 0 < spec.checkpoint.every_steps < spec.stop.steps
        return self._with_checkpoint(phase) if others else phase

    def _with_checkpoint(self, phase: PhaseMemory) -> PhaseMemory:
        """With a copy of what is written, in the memory of the host."""
        if self.models.on_cpu:
            return _beside(phase, "checkpoint", self._checkpoint)
        return phase.model_copy(update={"host": phase.host + self._checkpoint})

    @property
    def _checkpoint(self) -> int:
        return sum(self.models.layout(engine).checkpoint for engine in self.models.training if engine.trainable)

    def _sync(self, kept: PhaseMemory) -> PhaseMemory:
        """A worker that generates alone has the cache of the step before."""
        cache = 0
        if not self.models.training:
            cache = max(self._cache(engine, kept.peak)[0] for engine in self.models.generating)
        peak = kept.peak + cache + max(sent_bytes(self.models, engine) for engine in self.models.here)
        host = kept.host + max(received_on_host(self.models, engine) for engine in self.models.here)
        return kept.model_copy(update={"phase": "sync", "cache": cache, "peak": peak, "host": host})

    def _ends(self, *engines: str) -> set[str]:
        return {self.models.plan.engine(engine).group for engine in engines}

    def _read_on_host(self, engine: EnginePlan) -> int:
        """Bytes of the model that a worker of an accelerator begins to generate with, in the memory of its host: what
        is outside of the layers and one of these. Where files have the job's precision a part of it is their pages,
        which the workers of a pod share.

        All of a model comes from storage once a pod, and the leader of a copy computes with it meanwhile: 235B (470 GB)
        in 235 s at 2 GB/s, and 1,024 tokens of a probe in 45 s at 10^12 operations a second.
        """
        if self.models.on_cpu or not ROLLOUT_ENGINES[engine.library].begins_on_host:
            return 0
        shape = self.models.shapes[engine.path]
        return (shape.rest + shape.layer) * NUMBER_BYTES[self.models.plan.precision] + tower_bytes(self.models, engine)

    def _training_asleep(self, kept: PhaseMemory) -> PhaseMemory:
        """Optimizers of models on an accelerator wait on its host while it generates."""
        if self.models.on_cpu:
            return kept
        held = (self.models.layout(engine).optimizer_kept for engine in self.models.training if engine.trainable)
        asleep = sum(item for item in held if item >= LEAST_ASLEEP_BYTES)
        without = {"optimizer": kept.optimizer - asleep, "host": kept.host + asleep, "peak": kept.peak - asleep}
        return kept.model_copy(update=without)

    def _generating_asleep(self, kept: PhaseMemory) -> PhaseMemory:
        """Copies of weights that generate are dropped while the policy trains, as new ones come before they are needed
        again. In steps in which only a critic learns none come, and they stay, or wait on the host."""
        on_cpu = self.models.on_cpu
        if warm_up_steps(self.models.plan.spec):
            waiting = 0 if on_cpu else sum(self.models.copy(engine) for engine in self.models.generating)
            return kept.model_copy(update={"host": kept.host + waiting})
        dropped = sum(
            size
            for engine in self.models.generating
            if (size := self.models.copy(engine)) >= LEAST_ASLEEP_BYTES
            and not (on_cpu and ROLLOUT_ENGINES[engine.library].stays_awake_on_cpus)
        )
        without = {"weights": kept.weights - dropped, "peak": kept.peak - dropped}
        return kept.model_copy(update=without)

    def _generate(self, kept: PhaseMemory) -> PhaseMemory:
        caches, draws = zip(*(self._cache(engine, kept.peak) for engine in self.models.generating), strict=True)
        pictures = max(prompt_picture_bytes(self.models, engine) for engine in self.models.generating)
        if self.models.on_cpu:
            pictures += video_bytes(self.models)
        else:
            kept = kept.model_copy(update={"host": kept.host + video_bytes(self.models)})
        peak = kept.peak + max(caches) + max(max(draws), pictures)
        result = {"cache": max(caches), "logits": max(draws), "pictures": pictures, "peak": peak}
        return kept.model_copy(update={"phase": "generate", **result})

    def _cache(self, engine: EnginePlan, kept: int) -> tuple[int, int]:
        """Keys and values of all rows, or of as many as have room; logits of one token of each."""
        if ROLLOUT_ENGINES[engine.library].is_remote:
            return 0, 0
        plan, shape = self.models.plan, self.models.shapes[engine.path]
        spec, computed = plan.spec, NUMBER_BYTES[plan.precision]
        one = row_cache_bytes(shape, spec.longest_row, computed, engine.mesh.tp) * shape.keeps_keys
        rows = spec.num_rows // engine.mesh.dp  # a job whose copies cannot share its prompts equally is refused
        if self.models.limit is not None and one:
            free = self.models.limit.usable - kept
            rows = min(rows, max(1, int(free * spec.rollout.memory_fraction) // one))
        return rows * one, draw_bytes(shape, rows, computed)

    def _train(self, kept: PhaseMemory) -> PhaseMemory:
        """Models come one after the other."""
        layouts = [self.models.layout(engine) for engine in self.models.training]
        updates = [self._update(engine) for engine in self.models.training]
        seen = [pictures_of_update(self.models, engine) for engine in self.models.training]
        stepped = (
            layout.host_gradients for layout, item in zip(layouts, self.models.training, strict=True) if item.trainable
        )
        passes = list(zip(layouts, updates, seen, strict=True))
        result = {
            "weights": kept.weights + max(layout.gathered + tower.gathered for layout, _, tower in passes),
            "optimizer": kept.optimizer + max(layout.stepped for layout in layouts),
            "gradients": max(update.gradients + tower.gradients for _, update, tower in passes),
            "activations": max(update.activations for update in updates),
            "logits": max(update.logits for update in updates),
            "pictures": max(tower.pictures for tower in seen),
            "peak": kept.peak + max(layout.gathered + tower.peak(update) for layout, update, tower in passes),
            "host": kept.host + max(stepped, default=0),
        }
        return kept.model_copy(update={"phase": "train", **result})

    def _update(self, engine: EnginePlan) -> UpdateMemory:
        """Memory for the tokens of a pack that this worker computes; a model that is not trained takes logits."""
        layout, spec = self.models.layout(engine), self.models.plan.spec
        all_tokens, pack = packs_of(self.models.plan, engine)
        tokens = ceil(pack / engine.mesh.cp)
        predicted = 0
        if layout.shape.ends and not self.models.plan.has_value_head(engine):
            responses = ceil(spec.mini_batch_rows / engine.mesh.dp) * spec.rollout.max_response_tokens
            predicted = min(ceil(tokens / engine.mesh.tp), responses)
        if not engine.trainable:
            logits = logits_bytes(layout, predicted, trained=False)
            scores = scores_bytes(layout, ATTENDED * tokens, spec.longest_row, trained=False)
            return UpdateMemory(0, scores, logits, max(scores, logits))
        rows, prompt, response = (
            spec.algorithm.group_size,
            spec.data.max_prompt_tokens,
            spec.rollout.max_response_tokens,
        )
        # rows of a group are computed with one prompt and attend over one each, as far as packing lets them
        again = min(ATTENDED, rows * (prompt + response) / (prompt + rows * response))
        # rows end where they like: as many tokens may be predicted as make all chunks of logits full
        full = predicted - predicted % layout.tokens_of_chunk
        made = partial(
            update_memory,
            layout,
            tokens,
            micro_batches=ceil(all_tokens / pack),
            recompute=engine.recomputes,
            attended=int(again * tokens),
            longest=spec.longest_row,
            on_their_way=engine.mesh.pp - self.models.stage,
        )
        return max((made(responses=count) for count in {predicted, full or predicted}), key=lambda update: update.peak)


def _beside(phase: PhaseMemory, part: Literal["checkpoint", "delta"], size: int) -> PhaseMemory:
    return phase.model_copy(update={part: size, "peak": phase.peak + size})
