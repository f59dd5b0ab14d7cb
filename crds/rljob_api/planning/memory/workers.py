"""What the workers of a plan have in memory, where shapes of their models are at hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import ceil
from typing import Literal

from rljob_api.catalogue.optimizers import OPTIMIZERS
from rljob_api.catalogue.rollout_engines import ROLLOUT_ENGINES
from rljob_api.memory.activations import logits_bytes, scores_bytes
from rljob_api.memory.generation import draw_bytes, row_cache_bytes
from rljob_api.memory.model_shape import Shapes
from rljob_api.memory.parallel_layout import ParallelLayout
from rljob_api.memory.phases import LEAST_ASLEEP_BYTES, GroupMemory, PhaseMemory
from rljob_api.memory.pictures import PictureMemory, picture_memory
from rljob_api.memory.sizes import ATTENDED, BUCKET_BYTES, NUMBER_BYTES, PREFILL_TOKENS, logits_elements
from rljob_api.memory.training import UpdateMemory, update_memory
from rljob_api.memory.video_encoder import VideoEncoderShape
from rljob_api.memory.weight_slices import slice_parameters
from rljob_api.planning.memory.layouts import largest_of, packs_of, parallel_layout
from rljob_api.planning.memory.limits import Limit, Limits
from rljob_api.planning.plan import EnginePlan, GroupPlan, Plan
from rljob_api.planning.weights.flows import MAX_SLOT_BYTES, WINDOW, WeightFlow, slot_bytes, weight_flows
from rljob_api.planning.weights.staging import stageable_flows
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
            workers = [_Worker(plan, group, shapes, limit, stage) for stage in stages]
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
    """One worker of a group whose models have known shapes."""

    plan: Plan
    group: GroupPlan
    shapes: Shapes
    limit: Limit | None
    stage: int
    """Which of the pipeline stages of what is trained is this worker's."""

    def phases(self) -> Iterator[PhaseMemory]:
        """After the load with the slices of the next version, where they come ahead: if the job says so, and by default
        on an accelerator with room for them beside all else."""
        load, *others = self._phases()
        if staged := self._next_slices:
            beside = [self._with_staged(phase, staged) for phase in others]
            room = 0 if self.group.device == "cpu" or self.limit is None else self.limit.usable
            if self.plan.spec.weight_sync.staging == "Device" or max(phase.peak for phase in beside) <= room:
                others = beside
        yield from (load, *others)

    def _with_staged(self, phase: PhaseMemory, staged: int) -> PhaseMemory:
        """Beside all that engines take, whatever they need of it."""
        reserves = any(ROLLOUT_ENGINES[engine.library].reserves_memory for engine in self._generating)
        taken = 0
        if reserves and self.limit is not None and self.group.device != "cpu":
            taken = int(self.limit.bytes * self.plan.spec.rollout.memory_fraction)
        return phase.model_copy(update={"staged": staged, "peak": max(phase.peak, taken) + staged})

    @property
    def _next_slices(self) -> int:
        """Bytes that this worker takes of a version of every model that it may take ahead of its use."""
        if self.plan.spec.weight_sync.staging == "Host":
            return 0
        models = {flow.model: flow.tensor for flow in stageable_flows(self.plan, self.group.name)}
        return sum(
            slice_parameters(self.shapes[engine.path], models[engine.model]) * NUMBER_BYTES[self.plan.precision]
            + self._tower(engine)
            for engine in self._generating
            if engine.model in models
        )

    def _phases(self) -> Iterator[PhaseMemory]:
        optimizer = sum(self.layout(engine).optimizer_kept for engine in self._training if engine.trainable)
        weights = sum(self.layout(engine).kept for engine in self._training)
        weights += sum(self._copy(engine) for engine in self._generating)
        weights += sum(self._tower(engine) for engine in self._here)
        optimizer += sum(self._tower_states(engine) for engine in self._training)
        host = sum(self.layout(engine).host(trainable=engine.trainable) for engine in self._training)
        if self.group.device == "cpu":
            weights += self._video_encoder
        else:
            host += self._video_encoder
        kept = PhaseMemory(phase="load", weights=weights, optimizer=optimizer, peak=weights + optimizer, host=host)
        yield kept.model_copy(update={"host": host + sum(map(self._read_on_host, self._generating))})
        kept = _beside(kept, "delta", self._delta)
        if self._generating:
            yield self._while_written(self._generate(self._training_asleep(kept)))
        if self._training:
            yield self._while_written(self._train(self._generating_asleep(kept)))
        if any(self.group.name in self._ends(edge.source, edge.target) for edge in self.plan.weights):
            yield self._while_written(self._sync(self._training_asleep(kept) if self._generating else kept))
        if self._checkpoint:
            after = self._training_asleep(kept) if self._generating else kept
            yield self._with_checkpoint(after.model_copy(update={"phase": "checkpoint"}))

    def _while_written(self, phase: PhaseMemory) -> PhaseMemory:
        """With the copy of an earlier step's checkpoint, which is written meanwhile; after the last step none is."""
        spec = self.plan.spec
        others = 0 < spec.checkpoint.every_steps < spec.stop.steps
        return self._with_checkpoint(phase) if others else phase

    def _with_checkpoint(self, phase: PhaseMemory) -> PhaseMemory:
        """With a copy of what is written, in the memory of the host."""
        if self.group.device == "cpu":
            return _beside(phase, "checkpoint", self._checkpoint)
        return phase.model_copy(update={"host": phase.host + self._checkpoint})

    @property
    def _checkpoint(self) -> int:
        return sum(self.layout(engine).checkpoint for engine in self._training if engine.trainable)

    @property
    def _delta(self) -> int:
        if self.group.device != "cpu" or self.plan.spec.weight_sync.delta is None:
            return 0
        return sum(self._last_version(flow) for flow in weight_flows(self.plan))

    def _last_version(self, flow: WeightFlow) -> int:
        """Bytes kept of the last version of a model that is sent as changes: a source keeps every n-th bucket, a worker
        that generates its slice."""
        engine = next(engine for engine in self.plan.engines if engine.model == flow.model)
        whole, bucket = self._whole(engine), self._bucket(engine)
        if flow.source.name == self.group.name:
            return min(whole, ceil(ceil(whole / bucket) / len(flow.source_ranks)) * bucket)
        if not any(target.name == self.group.name for target in flow.targets):
            return 0
        return slice_parameters(self.shapes[engine.path], flow.tensor) * NUMBER_BYTES[self.plan.precision]

    def layout(self, engine: EnginePlan) -> ParallelLayout:
        """How an engine that trains or scores here keeps its part of a model."""
        return self._layouts[engine.name]

    @cached_property
    def _layouts(self) -> dict[str, ParallelLayout]:
        """By the name of the engine: every phase asks for them, and a search for layouts has ten thousand workers."""
        plan, shapes = self.plan, self.shapes
        limit = None if self.group.device == "cpu" else self.limit
        at_once = logits_elements(None if limit is None else limit.bytes)
        return {
            item.name: replace(parallel_layout(plan, item, shapes[item.path], self.stage), logits_elements=at_once)
            for item in self._training
        }

    def _whole(self, engine: EnginePlan) -> int:
        return self.shapes[engine.path].parameters * NUMBER_BYTES[self.plan.precision]

    def _bucket(self, engine: EnginePlan) -> int:
        """The largest that its weights go in: a tensor that is larger than a bucket is one."""
        return max(min(BUCKET_BYTES, self._whole(engine)), self._tensor(engine))

    def _tensor(self, engine: EnginePlan) -> int:
        """The largest of its weights."""
        return self.shapes[engine.path].largest_tensor * NUMBER_BYTES[self.plan.precision]

    def _sync(self, kept: PhaseMemory) -> PhaseMemory:
        """A worker that generates alone has the cache of the step before."""
        cache = 0
        if not self._training:
            cache = max(self._cache(engine, kept.peak)[0] for engine in self._generating)
        peak = kept.peak + cache + max(self._sent(engine) for engine in self._here)
        return kept.model_copy(update={"phase": "sync", "cache": cache, "peak": peak})

    def _sent(self, engine: EnginePlan) -> int:
        """What an engine has of new weights while they go from trainer to rollout, beyond the weights themselves."""
        if engine.kind == "Rollout":
            return max((self._received(flow, engine) for flow in self._flows_here(engine)), default=0)
        broadcasts = any(flow.transport == "Collective" for flow in self._flows_here(engine))
        return self._gathered(engine) + broadcasts * min(WINDOW * MAX_SLOT_BYTES, self._whole(engine))

    def _gathered(self, engine: EnginePlan) -> int:
        """A bucket, and the parts of it that ranks give; where a worker has the model whole, a tensor that becomes
        another, and the one before it."""
        if engine.mesh.ranks_per_copy * engine.mesh.shards > 1:
            return 2 * self._bucket(engine)
        layout = self.layout(engine)
        is_sent_as_it_is = engine.adapter is None and layout.stored == layout.computed
        return 0 if is_sent_as_it_is else 2 * self._tensor(engine)

    def _received(self, flow: WeightFlow, engine: EnginePlan) -> int:
        """Chunks on their way to this device, and the parts of tensors that are put together of several of them."""
        size = MAX_SLOT_BYTES if flow.transport == "Collective" else slot_bytes(self.plan) or MAX_SLOT_BYTES
        tensor = ceil(self._tensor(engine) / flow.tensor)
        slots = min(WINDOW * size, self._whole(engine)) if flow.transport == "Collective" else 0
        return slots + min(2, len(flow.source_ranks)) * tensor * (tensor > size)

    def _flows_here(self, engine: EnginePlan) -> list[WeightFlow]:
        """Those of an engine's model that begin or end in this group."""
        ends = ((flow, (flow.source, *flow.targets)) for flow in weight_flows(self.plan) if flow.model == engine.model)
        return [flow for flow, groups in ends if any(group.name == self.group.name for group in groups)]

    @cached_property
    def _here(self) -> list[EnginePlan]:
        return [*self._training, *self._generating]

    @cached_property
    def _training(self) -> list[EnginePlan]:
        """Those with weights of their own: a base is another engine's model with its adapter off."""
        own = (engine for engine in self.plan.engines if engine.kind == "Train" and engine.base_of is None)
        return [item for item in own if item.group == self.group.name]

    @cached_property
    def _generating(self) -> list[EnginePlan]:
        return [engine for engine in self.plan.engines if engine.group == self.group.name and engine.kind == "Rollout"]

    def _ends(self, *engines: str) -> set[str]:
        return {self.plan.engine(engine).group for engine in engines}

    def _copy(self, engine: EnginePlan) -> int:
        """Weights of a model that generates: none of its own where the one that trains it is whole, or where a server
        has them."""
        if ROLLOUT_ENGINES[engine.library].is_remote:
            return 0
        lends = (
            item.model == engine.model
            and item.library == "FSDP"
            and item.adapter is None
            and item.mesh.ranks_per_copy == 1
            and self.layout(item).is_whole
            and not item.compiles
            for item in self._training
        )
        is_lent = ROLLOUT_ENGINES[engine.library].borrows_weights and any(lends)
        return 0 if is_lent else ceil(self._whole(engine) / engine.mesh.tp)

    def _read_on_host(self, engine: EnginePlan) -> int:
        """Bytes of the model that a worker of an accelerator begins to generate with, in the memory of its host: what
        is outside of the layers and one of these. Where files have the job's precision a part of it is their pages,
        which the workers of a pod share.

        All of a model comes from storage once a pod, and the leader of a copy computes with it meanwhile: 235B (470 GB)
        in 235 s at 2 GB/s, and 1,024 tokens of a probe in 45 s at 10^12 operations a second.
        """
        if self.group.device == "cpu" or not ROLLOUT_ENGINES[engine.library].begins_on_host:
            return 0
        shape = self.shapes[engine.path]
        return (shape.rest + shape.layer) * NUMBER_BYTES[self.plan.precision] + self._tower(engine)

    def _training_asleep(self, kept: PhaseMemory) -> PhaseMemory:
        """Optimizers of models on an accelerator wait on its host while it generates."""
        if self.group.device == "cpu":
            return kept
        held = (self.layout(engine).optimizer_kept for engine in self._training if engine.trainable)
        asleep = sum(item for item in held if item >= LEAST_ASLEEP_BYTES)
        without = {"optimizer": kept.optimizer - asleep, "host": kept.host + asleep, "peak": kept.peak - asleep}
        return kept.model_copy(update=without)

    def _generating_asleep(self, kept: PhaseMemory) -> PhaseMemory:
        """Copies of weights that generate are dropped while the policy trains, as new ones come before they are needed
        again. In steps in which only a critic learns none come, and they stay, or wait on the host."""
        on_cpu = self.group.device == "cpu"
        if warm_up_steps(self.plan.spec):
            waiting = 0 if on_cpu else sum(self._copy(engine) for engine in self._generating)
            return kept.model_copy(update={"host": kept.host + waiting})
        dropped = sum(
            size
            for engine in self._generating
            if (size := self._copy(engine)) >= LEAST_ASLEEP_BYTES
            and not (on_cpu and ROLLOUT_ENGINES[engine.library].stays_awake_on_cpus)
        )
        without = {"weights": kept.weights - dropped, "peak": kept.peak - dropped}
        return kept.model_copy(update=without)

    def _generate(self, kept: PhaseMemory) -> PhaseMemory:
        caches, draws = zip(*(self._cache(engine, kept.peak) for engine in self._generating), strict=True)
        pictures = max(self._prompt_pictures(engine) for engine in self._generating)
        if self.group.device == "cpu":
            pictures += self._video
        else:
            kept = kept.model_copy(update={"host": kept.host + self._video})
        peak = kept.peak + max(caches) + max(max(draws), pictures)
        result = {"cache": max(caches), "logits": max(draws), "pictures": pictures, "peak": peak}
        return kept.model_copy(update={"phase": "generate", **result})

    def _cache(self, engine: EnginePlan, kept: int) -> tuple[int, int]:
        """Keys and values of all rows, or of as many as have room; logits of one token of each."""
        if ROLLOUT_ENGINES[engine.library].is_remote:
            return 0, 0
        spec, computed, shape = self.plan.spec, NUMBER_BYTES[self.plan.precision], self.shapes[engine.path]
        one = row_cache_bytes(shape, spec.longest_row, computed, engine.mesh.tp) * shape.keeps_keys
        rows = spec.num_rows // engine.mesh.dp  # a job whose copies cannot share its prompts equally is refused
        if self.limit is not None and one:
            free = self.limit.usable - kept
            rows = min(rows, max(1, int(free * spec.rollout.memory_fraction) // one))
        return rows * one, draw_bytes(shape, rows, computed)

    def _train(self, kept: PhaseMemory) -> PhaseMemory:
        """Models come one after the other."""
        layouts = [self.layout(engine) for engine in self._training]
        updates = [self._update(engine) for engine in self._training]
        seen = [self._pictures(engine) for engine in self._training]
        stepped = (
            layout.host_gradients for layout, item in zip(layouts, self._training, strict=True) if item.trainable
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

    def _tower(self, engine: EnginePlan) -> int:
        """Bytes of the weights of a vision tower, divided over the ranks that train or score."""
        vision = self.shapes[engine.path].vision
        if vision is None:
            return 0
        if engine.kind == "Rollout":
            return vision.parameters * NUMBER_BYTES[self.plan.precision]
        return ceil(vision.parameters * self.layout(engine).stored / engine.mesh.shards)

    def _tower_states(self, engine: EnginePlan) -> int:
        """Bytes of the optimizer of a tower that is trained."""
        vision, optimizer = self.shapes[engine.path].vision, self.plan.spec.training.optimizer
        if vision is None or not self._trains_tower(engine):
            return 0
        per_state = {"Float32": 4, "BFloat16": 2, "Int8": 1}[optimizer.states]
        return ceil(vision.parameters * per_state * len(OPTIMIZERS[optimizer.name].states) / engine.mesh.shards)

    @property
    def _video_encoder(self) -> int:
        """Bytes of the weights of what encodes videos, which is on CPUs."""
        return max((item.weight_bytes for item in self._video_encoders), default=0)

    @property
    def _video(self) -> int:
        """Bytes of the one video that it encodes while episodes are played."""
        simulator = self.plan.spec.rollout.simulator
        frames = 0 if simulator is None or simulator.video is None else simulator.video.frames
        return max((item.video_bytes(frames) for item in self._video_encoders), default=0)

    @cached_property
    def _video_encoders(self) -> list[VideoEncoderShape]:
        shapes = (self.shapes[engine.path].videos for engine in self._generating)
        return [shape for shape in shapes if shape is not None]

    def _trains_tower(self, engine: EnginePlan) -> bool:
        return engine.trainable and self.plan.spec.source_of(engine.model).vision.train

    def _pictures(self, engine: EnginePlan) -> PictureMemory:
        """What a micro-batch takes that is pictures altogether, within `patchesPerMicroBatch`."""
        spec, vision = self.plan.spec, self.shapes[engine.path].vision
        if vision is None or not spec.sees:
            return PictureMemory()
        longest = spec.data.max_prompt_tokens
        all_tokens, tokens = packs_of(self.plan, engine)
        if (most := spec.training.patches_per_micro_batch) is not None:
            tokens = min(tokens, max(longest, most // vision.merge**2))  # a prompt with more goes alone
        return picture_memory(
            vision,
            self.layout(engine),
            tokens,
            trained=self._trains_tower(engine),
            recompute=engine.recomputes,
            several=all_tokens > tokens,
        )

    def _prompt_pictures(self, engine: EnginePlan) -> int:
        """Bytes of the pictures of prompts that are computed at once, and are pictures altogether."""
        spec, vision = self.plan.spec, self.shapes[engine.path].vision
        if vision is None or not spec.sees:
            return 0
        longest, computed = spec.data.max_prompt_tokens, NUMBER_BYTES[self.plan.precision]
        prompts = ceil(spec.num_rows / engine.mesh.dp / spec.algorithm.group_size)
        tokens = min(max(PREFILL_TOKENS, longest), prompts * longest)
        return vision.kept_bytes(tokens, computed, trained=False) + vision.working_bytes(tokens, computed)

    def _update(self, engine: EnginePlan) -> UpdateMemory:
        """Memory for the tokens of a pack that this worker computes; a model that is not trained takes logits."""
        layout, spec = self.layout(engine), self.plan.spec
        all_tokens, pack = packs_of(self.plan, engine)
        tokens = ceil(pack / engine.mesh.cp)
        predicted = 0
        if layout.shape.ends and not self.plan.has_value_head(engine):
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
            on_their_way=engine.mesh.pp - self.stage,
        )
        return max((made(responses=count) for count in {predicted, full or predicted}), key=lambda update: update.peak)


def _beside(phase: PhaseMemory, part: Literal["checkpoint", "delta"], size: int) -> PhaseMemory:
    return phase.model_copy(update={part: size, "peak": phase.peak + size})
