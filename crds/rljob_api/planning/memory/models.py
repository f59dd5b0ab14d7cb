"""The models of one worker, and how much of each it keeps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil

from rljob_api.catalogue.rollout_engines import ROLLOUT_ENGINES
from rljob_api.memory.model_shape import Shapes
from rljob_api.memory.parallel_layout import ParallelLayout
from rljob_api.memory.sizes import BUCKET_BYTES, NUMBER_BYTES, logits_elements
from rljob_api.planning.memory.layouts import parallel_layout
from rljob_api.planning.memory.limits import Limit
from rljob_api.planning.plan import EnginePlan, GroupPlan, Plan
from rljob_api.planning.weights.flows import WeightFlow, weight_flows


@dataclass(frozen=True)
class WorkerModels:
    """Those of one worker of a group, all of which have known shapes."""

    plan: Plan
    group: GroupPlan
    shapes: Shapes
    limit: Limit | None
    stage: int
    """Which of the pipeline stages of what is trained is this worker's."""

    @property
    def on_cpu(self) -> bool:
        return self.group.device == "cpu"

    @cached_property
    def training(self) -> list[EnginePlan]:
        """Those with weights of their own: a base is another engine's model with its adapter off."""
        own = (engine for engine in self.plan.engines if engine.kind == "Train" and engine.base_of is None)
        return [item for item in own if item.group == self.group.name]

    @cached_property
    def generating(self) -> list[EnginePlan]:
        return [engine for engine in self.plan.engines if engine.group == self.group.name and engine.kind == "Rollout"]

    @cached_property
    def here(self) -> list[EnginePlan]:
        return [*self.training, *self.generating]

    def layout(self, engine: EnginePlan) -> ParallelLayout:
        """How an engine that trains or scores here keeps its part of a model."""
        return self._layouts[engine.name]

    @cached_property
    def _layouts(self) -> dict[str, ParallelLayout]:
        """By the name of the engine: every phase asks for them, and a search for layouts has ten thousand workers."""
        plan, shapes = self.plan, self.shapes
        limit = None if self.on_cpu else self.limit
        at_once = logits_elements(None if limit is None else limit.bytes)
        return {
            item.name: replace(parallel_layout(plan, item, shapes[item.path], self.stage), logits_elements=at_once)
            for item in self.training
        }

    def whole(self, engine: EnginePlan) -> int:
        return self.shapes[engine.path].parameters * NUMBER_BYTES[self.plan.precision]

    def tensor(self, engine: EnginePlan) -> int:
        """The largest of its weights."""
        return self.shapes[engine.path].largest_tensor * NUMBER_BYTES[self.plan.precision]

    def bucket(self, engine: EnginePlan) -> int:
        """The largest that its weights go in: a tensor that is larger than a bucket is one."""
        return max(min(BUCKET_BYTES, self.whole(engine)), self.tensor(engine))

    def copy(self, engine: EnginePlan) -> int:
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
            for item in self.training
        )
        is_lent = ROLLOUT_ENGINES[engine.library].borrows_weights and any(lends)
        return 0 if is_lent else ceil(self.whole(engine) / engine.mesh.tp)

    def flows_of(self, engine: EnginePlan) -> list[WeightFlow]:
        """Those of an engine's model that begin or end in this group."""
        ends = ((flow, (flow.source, *flow.targets)) for flow in weight_flows(self.plan) if flow.model == engine.model)
        return [flow for flow, groups in ends if any(group.name == self.group.name for group in groups)]
