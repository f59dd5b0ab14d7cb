"""What the workers of a plan have in memory, and what of it cannot be.  Where a model's shape is at hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Literal

from rljob_api.checks.subject import problem
from rljob_api.memory.generating import draw_bytes, row_cache_bytes
from rljob_api.memory.model_shape import ModelShape
from rljob_api.memory.phases import GroupMemory, PhaseMemory
from rljob_api.memory.training import ATTENDED, BUCKET_BYTES, Layout, Update, logits_bytes, update_of
from rljob_api.planning.plan import EnginePlan, GroupPlan, Plan
from rljob_api.planning.weights import WeightFlow, weight_flows
from rljob_api.vocabulary.keys import CONTAINER_WORKER
from rljob_api.vocabulary.problem import Problem
from rljob_api.vocabulary.quantity import amount, format_bytes, parse_quantity

Shapes = Mapping[str, ModelShape]
"""By the path of the model."""

PROCESS_BYTES = 512 << 20
"""Of a worker's memory beside its models: Python and its libraries."""
DEVICE_BYTES = 1 << 30
"""Of an accelerator that its driver and the collectives take."""

_NUMBER_BYTES = {"Float32": 4, "BFloat16": 2, "Float64": 8}


@dataclass(frozen=True, slots=True)
class Limit:
    """Bytes that one worker has."""

    bytes: int
    source: str
    """Where that is said."""
    beside: int
    """Of them, what it takes beside its models."""

    @property
    def usable(self) -> int:
        return self.bytes - self.beside


Limits = Mapping[str, Limit]
"""By group; those of which nothing is known are left out."""


def memory_of(plan: Plan, shapes: Shapes, limits: Limits) -> tuple[GroupMemory, ...]:
    """Every group that has engines, in the order of the plan."""
    found = []
    for group in plan.groups:
        engines = [engine for engine in plan.engines if engine.group == group.name]
        unknown = tuple(dict.fromkeys(engine.path for engine in engines if engine.path not in shapes))
        if unknown:
            found.append(GroupMemory(group=group.name, unknown=unknown))
        elif engines:
            worker = _Worker(plan, group, shapes, limits.get(group.name))
            found.append(GroupMemory(group=group.name, phases=tuple(worker.phases())))
    return tuple(found)


@dataclass(frozen=True)
class _Worker:
    """One worker of a group whose models have known shapes."""

    plan: Plan
    group: GroupPlan
    shapes: Shapes
    limit: Limit | None

    def phases(self) -> Iterator[PhaseMemory]:
        optimizer = sum(self.layout(engine).optimizer for engine in self._training if engine.trainable)
        weights = sum(self.layout(engine).shard for engine in self._training)
        weights += sum(self._copy(engine) for engine in self._generating)
        kept = PhaseMemory(phase="load", weights=weights, optimizer=optimizer, peak=weights + optimizer)
        yield kept
        kept = _beside(kept, "delta", self._delta)
        if self._generating:
            yield self._while_written(self._generate(kept))
        if self._training:
            yield self._while_written(self._train(kept))
        if any(self.group.name in self._ends(edge.source, edge.target) for edge in self.plan.weights):
            on_their_way = 2 * max(self._bucket(engine) for engine in self._here)
            yield self._while_written(kept.model_copy(update={"phase": "sync", "peak": kept.peak + on_their_way}))
        if self._checkpoint:
            yield _beside(kept.model_copy(update={"phase": "checkpoint"}), "checkpoint", self._checkpoint)

    def _while_written(self, phase: PhaseMemory) -> PhaseMemory:
        """With the copy of an earlier step's checkpoint, which is written meanwhile; after the last step none is."""
        spec = self.plan.spec
        others = 0 < spec.checkpoint.every_steps < spec.stop.steps
        return _beside(phase, "checkpoint", self._checkpoint) if others else phase

    @property
    def _checkpoint(self) -> int:
        if self.group.device != "cpu":
            return 0
        return sum(self.layout(engine).checkpoint for engine in self._training if engine.trainable)

    @property
    def _delta(self) -> int:
        if self.group.device != "cpu" or self.plan.spec.weight_sync.delta is None:
            return 0
        return sum(self._last_version(flow) for flow in weight_flows(self.plan))

    def _last_version(self, flow: WeightFlow) -> int:
        """Of a model that goes as changes: a source has every n-th bucket, whoever generates all of it."""
        engine = next(each for each in self.plan.engines if each.model == flow.model)
        whole, bucket = self._whole(engine), self._bucket(engine)
        if flow.source.name == self.group.name:
            return min(whole, ceil(ceil(whole / bucket) / len(flow.source_ranks)) * bucket)
        return whole if any(target.name == self.group.name for target in flow.targets) else 0

    def layout(self, engine: EnginePlan) -> Layout:
        """How an engine that trains or scores keeps its model."""
        computed = _NUMBER_BYTES[self.plan.precision]
        shape = self.shapes[engine.path]
        if self.plan.has_value_head(engine):
            shape = replace(shape, tied=True)  # without a last layer
        shape = shape.split(engine.mesh.tp)
        on_cpu, ranks = self.group.device == "cpu", engine.mesh.dp * engine.mesh.cp
        if engine.adapter is not None:  # of every linear layer, though the job may name fewer
            return Layout(shape, ranks, computed, computed, on_cpu, adapter=shape.adapter(engine.adapter.rank))
        stored = max(computed, 4) if engine.trainable else computed
        return Layout(shape, ranks, stored, computed, on_cpu, expert_ranks=engine.mesh.ep, tensor=engine.mesh.tp)

    def _whole(self, engine: EnginePlan) -> int:
        return self.shapes[engine.path].parameters * _NUMBER_BYTES[self.plan.precision]

    def _bucket(self, engine: EnginePlan) -> int:
        """The largest that its weights go in: a tensor that is larger than a bucket is one."""
        tensor = self.shapes[engine.path].largest_tensor * _NUMBER_BYTES[self.plan.precision]
        return max(min(BUCKET_BYTES, self._whole(engine)), tensor)

    @property
    def _here(self) -> list[EnginePlan]:
        return [*self._training, *self._generating]

    @property
    def _training(self) -> list[EnginePlan]:
        """Those with weights of their own: a base is another engine's model with its adapter off."""
        own = (each for each in self.plan.engines if each.kind == "Train" and each.base_of is None)
        return [each for each in own if each.group == self.group.name]

    @property
    def _generating(self) -> list[EnginePlan]:
        return [each for each in self.plan.engines if each.group == self.group.name and each.kind == "Rollout"]

    def _ends(self, *engines: str) -> set[str]:
        return {self.plan.engine(engine).group for engine in engines}

    def _copy(self, engine: EnginePlan) -> int:
        """Weights of a model that generates: none of its own where the one that trains it is whole."""
        lends = (
            each.model == engine.model
            and each.adapter is None
            and each.mesh.ranks_per_copy == 1
            and self.layout(each).is_whole
            for each in self._training
        )
        is_lent = engine.library == "Transformers" and any(lends)
        return 0 if is_lent else ceil(self._whole(engine) / engine.mesh.tp)

    def _generate(self, kept: PhaseMemory) -> PhaseMemory:
        caches, draws = zip(*(self._cache(engine, kept.peak) for engine in self._generating), strict=True)
        peak = kept.peak + max(caches) + max(draws)
        return kept.model_copy(update={"phase": "generate", "cache": max(caches), "logits": max(draws), "peak": peak})

    def _cache(self, engine: EnginePlan, kept: int) -> tuple[int, int]:
        """Keys and values of all rows, or of as many as have room; logits of one token of each."""
        spec, computed, shape = self.plan.spec, _NUMBER_BYTES[self.plan.precision], self.shapes[engine.path]
        one = row_cache_bytes(shape, spec.longest_row, computed, engine.mesh.tp)
        rows = ceil(spec.num_rows / engine.mesh.dp)
        if self.limit is not None:
            free = self.limit.usable - kept
            rows = min(rows, max(1, int(free * spec.rollout.memory_fraction) // one))
        return rows * one, draw_bytes(shape, rows, computed)

    def _train(self, kept: PhaseMemory) -> PhaseMemory:
        """Models come one after the other."""
        layouts = [(self.layout(engine), self._update(engine)) for engine in self._training]
        return PhaseMemory(
            phase="train",
            weights=kept.weights + max(layout.gathered for layout, _ in layouts),
            optimizer=kept.optimizer,
            gradients=max(update.gradients for _, update in layouts),
            activations=max(update.activations for _, update in layouts),
            logits=max(update.logits for _, update in layouts),
            delta=kept.delta,
            peak=kept.peak + max(layout.gathered + update.peak for layout, update in layouts),
        )

    def _update(self, engine: EnginePlan) -> Update:
        """Of the tokens that this worker computes of a pack. What a model that is only asked takes: logits."""
        layout, spec = self.layout(engine), self.plan.spec
        all_tokens = ceil(spec.mini_batch_rows / engine.mesh.dp) * spec.longest_row
        sharing = engine.mesh.cp
        pack = min(max(spec.training.tokens_per_micro_batch * sharing, spec.longest_row), all_tokens)
        tokens = ceil(pack / sharing)
        predicted = 0 if self.plan.has_value_head(engine) else tokens
        if not engine.trainable:
            logits = logits_bytes(layout, predicted, trained=False)
            return Update(0, 0, logits, logits)
        recompute = spec.training.activation_checkpointing
        rows, prompt, response = (
            spec.algorithm.group_size,
            spec.data.max_prompt_tokens,
            spec.rollout.max_response_tokens,
        )
        # rows of a group are computed with one prompt and attend over one each, as far as packing lets them
        again = min(ATTENDED, rows * (prompt + response) / (prompt + rows * response))
        return update_of(
            layout, tokens, predicted, ceil(all_tokens / pack), recompute=recompute, attended=int(again * tokens)
        )


def _beside(phase: PhaseMemory, part: Literal["checkpoint", "delta"], size: int) -> PhaseMemory:
    return phase.model_copy(update={part: size, "peak": phase.peak + size})


def memory_problems(plan: Plan, limits: Limits) -> Iterator[Problem]:
    """A problem for each group of which a worker cannot fit."""
    for index, group in enumerate(plan.groups):
        found = next((each for each in plan.memory if each.group == group.name and each.phases), None)
        limit = limits.get(group.name)
        if found is None or limit is None:
            continue
        most = max(found.phases, key=lambda phase: phase.peak)
        if most.peak > limit.usable:
            parts = {name: getattr(most, name) for name in PARTS if getattr(most, name)}
            listed = ", ".join(f"{name} {format_bytes(size)}" for name, size in parts.items())
            doing = "write a checkpoint" if most.phase == "checkpoint" else most.phase
            yield problem(
                f"spec.workerGroups[{index}]",
                group.profile,
                f"a worker of {group.name} needs {format_bytes(most.peak + limit.beside)} to {doing} ({listed}, "
                f"and {format_bytes(limit.beside)} beside its models), and {limit.source} gives it "
                f"{format_bytes(limit.bytes)}",
                _fix(plan, group, most),
            )


PARTS = ("weights", "optimizer", "gradients", "activations", "logits", "cache", "checkpoint", "delta")
"""Of a phase, in the order in which they are shown."""


def limit_of(plan: Plan, group: GroupPlan, accelerator_memory: str | None) -> Limit | None:
    """What the accelerator has, or on CPUs a worker's part of the pod's limit."""
    if group.device != "cpu":
        if accelerator_memory is None:
            return None
        return Limit(parse_quantity(accelerator_memory), f"profile {group.profile}", DEVICE_BYTES)
    template = next(each.template for each in plan.spec.worker_groups if each.name == group.name)
    containers = (template.get("spec") or {}).get("containers") or ()
    resources = [each.get("resources") or {} for each in containers if each.get("name") == CONTAINER_WORKER]
    # what is null in a template takes our default away, which is no limit either
    given = next((memory for each in resources if (memory := (each.get("limits") or {}).get("memory"))), None)
    if given is None:
        return None
    return Limit(
        int(amount(given)) // group.workers_per_host, "its part of the container's limits.memory", PROCESS_BYTES
    )


def _fix(plan: Plan, group: GroupPlan, phase: PhaseMemory) -> str:
    """The fields that would help, those that give most first."""
    if phase.phase == "generate" and phase.cache > phase.weights + phase.optimizer:
        return "Lower rollout.maxResponseTokens or data.maxPromptTokens: not one row of this length has room."
    helps = ["raise the limit"] * (group.device == "cpu")
    if 4 * phase.activations > phase.peak:
        helps.append("lower training.tokensPerMicroBatch")
        helps += ["set training.activationCheckpointing: true"] * (not plan.spec.training.activation_checkpointing)
        helps += ["share rows between workers (training.parallelism.context)"] * (group.num_workers > 1)
    if 4 * phase.checkpoint > phase.peak and phase.phase != "checkpoint":
        helps.append("leave checkpoint.everySteps out")
    if 4 * phase.delta > phase.peak:
        helps.append("leave weightSync.delta out")
    helps.append(f"give group {group.name} more replicas or accelerators, over which weights and optimizer are divided")
    said = ", or ".join(helps)
    return f"{said[0].upper()}{said[1:]}."
