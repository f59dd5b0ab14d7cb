"""`plan()`: from a job to who runs what, on which layout, and what crosses between.  Pure; its cost is per group."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from rljob_api.catalogue import profiles as built_in_profiles
from rljob_api.catalogue.profiles import AcceleratorProfile
from rljob_api.checks.validation import problems_of
from rljob_api.memory.model_shape import Shapes
from rljob_api.memory.phases import GroupMemory
from rljob_api.pipeline.edges import columns_by_producer, stage_layout, stays_in_place
from rljob_api.pipeline.meshes import mesh_of
from rljob_api.pipeline.resolution import Resolution, ResolvedStage, assign_groups, lead_group_of, with_precision
from rljob_api.planning.costs.mesh_costs import mesh_costs
from rljob_api.planning.memory.limits import Limit, Limits, limits_of, memory_problems
from rljob_api.planning.memory.workers import memory_of
from rljob_api.planning.model_problems import model_problems
from rljob_api.planning.plan import EdgePlan, ElasticPlan, EnginePlan, GroupPlan, Plan, StagePlan, WeightEdge
from rljob_api.planning.serving import service_plan
from rljob_api.planning.weights.flows import weight_transport
from rljob_api.v1alpha1 import OffloadSpec, RLJob, RLJobSpec, WeightTransportChoice, WorkerGroupSpec
from rljob_api.vocabulary.problem import InvalidJobError

Profiles = Mapping[str, AcceleratorProfile]
EngineKey = tuple[str, str, Literal["Train", "Rollout"]]  # model, group, kind


def plan(job: RLJob, profiles: Profiles = built_in_profiles.DEFAULT, shapes: Shapes = MappingProxyType({})) -> Plan:
    """The plan of a job.  shapes: of the models whose configs are at hand, by path; of others it states no memory.

    Raises InvalidJobError with every problem of a job that cannot run, or else with what does not fit: heads onto the
    workers that share them, responses into a model's positions, groups into their memory.
    """
    return with_shapes(_drawn(job, profiles), shapes)


def with_shapes(drawn: Plan, shapes: Shapes) -> Plan:
    """A plan with all that follows from how large its models are, as it was made without them: what is compiled, what
    is computed again, where versions of weights wait, what workers have in memory. Raises InvalidJobError with what
    does not fit."""
    made = _estimated(drawn, shapes)
    if problems := [*model_problems(made, shapes), *memory_problems(made, limits_of(made))]:
        raise InvalidJobError(problems)
    return made


def draft(job: RLJob, profiles: Profiles, shapes: Shapes) -> tuple[Plan, Limits]:
    """The plan of a job whether it fits or not, and what there is. Raises InvalidJobError for all else."""
    made = _estimated(_drawn(job, profiles), shapes)
    if problems := list(model_problems(made, shapes)):
        raise InvalidJobError(problems)
    return made, limits_of(made)


def _drawn(job: RLJob, profiles: Profiles) -> Plan:
    if problems := problems_of(job, profiles):
        raise InvalidJobError(problems)
    return _Planner(job, profiles).build()


def _estimated(drawn: Plan, shapes: Shapes) -> Plan:
    limits = limits_of(drawn)
    made = with_recomputing(with_compiling(drawn, shapes), shapes, limits)
    costs = {"memory": memory_of(made, shapes, limits), "meshes": mesh_costs(made, shapes, limits)}
    return made.model_copy(update=costs)


class _Planner:
    """One planning; every property is built once, in the order of `build`."""

    def __init__(self, job: RLJob, profiles: Profiles) -> None:
        self.job, self.spec, self.profiles = job, _planned_spec(job.spec, profiles), profiles
        self.resolution = Resolution(self.spec)
        self.order = self._order()
        self.group_of = {name: group for name, group in assign_groups(self.resolution).items() if group is not None}

    def _order(self) -> tuple[str, ...]:
        """By level, and within one a Reward last: what computes rewards goes on beside the other stages until then."""
        graph, stages = self.resolution.graph, self.resolution.stages
        level = graph.levels()
        return tuple(sorted(graph.order(), key=lambda name: (level[name], stages[name].spec.run == "Reward")))

    def build(self) -> Plan:
        engines = self._engines()
        stages = tuple(self._stage(self.resolution.stages[name], engines) for name in self.order)
        return Plan(
            job=self.job.name,
            groups=tuple(self._group(group) for group in self.spec.worker_groups),
            engines=tuple(engines.values()),
            stages=stages,
            edges=_edges(stages, self.resolution),
            weights=_weights(tuple(engines.values()), self.spec.weight_sync.transport),
            lead_group=self._lead_group(),
            spec=self.spec,
            services=tuple(service_plan(service, self.profiles) for service in self.spec.services),
            rows_per_trajectory=self.spec.rows_per_trajectory,
        )

    def _group(self, group: WorkerGroupSpec) -> GroupPlan:
        profile, elastic = self.profiles[group.accelerator.profile], group.elastic
        homes = {group.name, None if self.spec.elastic_group is None else self.spec.elastic_group.name}
        runs = homes if group.name == self._lead_group() else {group.name}
        return GroupPlan(
            name=group.name,
            replicas=group.replicas if elastic is None else elastic.max,
            workers_per_host=group.accelerator.count,
            device=profile.device,
            backend=profile.backend,
            profile=profile.name,
            device_memory=profile.memory,
            schedule=tuple(name for name in self.order if self.group_of[name] in runs),
            elastic=None if elastic is None else ElasticPlan(min=elastic.min, max=elastic.max),
        )

    def _engines(self) -> dict[EngineKey, EnginePlan]:
        """One engine per model, group and kind, in the order in which stages need them."""
        engines: dict[EngineKey, EnginePlan] = {}
        for name in self.order:
            stage = self.resolution.stages[name]
            for model in self.resolution.engines_of(stage):
                key = _engine_key(stage, model, self.group_of[name])
                engines.setdefault(key, self._engine(key))
        return engines

    def _engine(self, key: EngineKey) -> EnginePlan:
        model, group, kind = key
        trained = model in self.resolution.trained_models
        source = self.spec.source_of(model)
        trainable = trained and kind == "Train"
        return EnginePlan(
            name=self._engine_name(key, trained),
            kind=kind,
            library=self.spec.rollout.engine if kind == "Rollout" else self.spec.training.engine,
            model=model,
            path=source.path,
            initialise=source.initialise,
            group=group,
            mesh=mesh_of(self.spec, group, kind),
            trainable=trainable,
            adapter=source.adapter if trainable else None,
            base_of=None if trained else self._adapted_engine(model, group),
            recomputes=trainable and self.spec.training.memory.activation_checkpointing == "Full",
            offload=self._offload(group, trainable) if kind == "Train" else OffloadSpec(),
        )

    def _offload(self, group: str, trainable: bool) -> OffloadSpec:
        """What of a model waits in the memory of the host, where that is not the memory it is computed in."""
        profile = next(
            worker_group.accelerator.profile for worker_group in self.spec.worker_groups if worker_group.name == group
        )
        asked = self.spec.training.memory.offload
        if self.profiles[profile].device == "cpu":
            return OffloadSpec()
        return OffloadSpec(optimizer=trainable and (asked.optimizer or asked.parameters), parameters=asked.parameters)

    def _adapted_engine(self, base: str, group: str) -> str | None:
        """The engine in this group that trains an adapter on the policy `base`."""
        stages = [stage for stage in self.resolution.stages.values() if self.group_of[stage.name] == group]
        heads = (stage for stage in stages if stage.built_in is not None and stage.built_in.has_value_head)
        if any(base in stage.models for stage in heads):
            return None  # it has a head of its own
        for stage in stages:
            if stage.spec.run == "UpdatePolicy":
                (model,) = stage.models
                if self.spec.source_of(model).adapter and self._is_same(model, base):
                    return self._engine_name((model, group, "Train"), trained=True)
        return None

    def _is_same(self, model: str, other: str) -> bool:
        """Whether both begin as the same weights."""
        one, two = self.spec.source_of(model), self.spec.source_of(other)
        return (one.path, one.initialise) == (two.path, two.initialise)

    def _engine_name(self, key: EngineKey, trained: bool) -> str:
        """`rollout/MODEL`, `train/MODEL`, or MODEL alone when nobody trains it; @GROUP where it has several homes."""
        model, group, kind = key
        name = f"rollout/{model}" if kind == "Rollout" else f"train/{model}" if trained else model
        homes = {
            self.group_of[stage.name]
            for stage in self.resolution.stages.values()
            if model in self.resolution.engines_of(stage) and stage.generates == (kind == "Rollout")
        }
        return name if len(homes) == 1 else f"{name}@{group}"

    def _stage(self, stage: ResolvedStage, engines: Mapping[EngineKey, EnginePlan]) -> StagePlan:
        group = self.group_of[stage.name]
        layout = stage_layout(self.resolution, stage, self.group_of)
        used = tuple(engines[_engine_key(stage, model, group)] for model in self.resolution.engines_of(stage))
        return StagePlan(
            name=stage.name,
            run=stage.spec.run,
            group=layout.group,
            models=stage.models,
            engines=tuple(engine.name for engine in used),
            mesh=layout.mesh,
            after=tuple(dict.fromkeys(stage.spec.after)),
            reads=self.resolution.reads_of(stage),
            writes=stage.columns.writes,
            rename=stage.spec.rename,
            needs_groups=stage.built_in is not None and stage.built_in.needs_groups,
            balance=layout.balance,
            scatters_rows=layout.scatters_rows,
            generated_in=layout.generated_in,
            options=stage.spec.options,
        )

    def _lead_group(self) -> str:
        lead = lead_group_of(self.resolution, self.group_of)
        assert lead is not None, "no stage updates a policy"
        return lead


def _planned_spec(spec: RLJobSpec, profiles: Profiles) -> RLJobSpec:
    """The spec as a plan has it: with its precision written out, and without the number of generators, which changes
    while the plan runs."""
    return with_precision(spec, profiles).model_copy(update={"generators": None})


def _engine_key(stage: ResolvedStage, model: str, group: str) -> EngineKey:
    return model, group, "Rollout" if stage.generates else "Train"


def _edges(stages: tuple[StagePlan, ...], resolution: Resolution) -> tuple[EdgePlan, ...]:
    """For every stage, an edge from each stage whose columns it reads and from each it comes after."""
    by_name = {stage.name: stage for stage in stages}
    edges = []
    for consumer in stages:
        columns = columns_by_producer(resolution, resolution.stages[consumer.name])
        for name in sorted(columns, key=list(by_name).index):
            in_place = stays_in_place(by_name[name], consumer)
            edges.append(
                EdgePlan(
                    name=f"{name}->{consumer.name}",
                    producer=name,
                    consumer=consumer.name,
                    columns=columns[name],
                    transport="Local" if in_place else "Buffer",
                )
            )
    return tuple(edges)


def _weights(engines: tuple[EnginePlan, ...], asked: WeightTransportChoice) -> tuple[WeightEdge, ...]:
    sources = {engine.model: engine for engine in engines if engine.trainable}
    targets = [engine for engine in engines if engine.kind == "Rollout" and engine.model in sources]
    return tuple(
        WeightEdge(
            name=target.name.replace("rollout/", "weights/", 1),
            model=target.model,
            source=sources[target.model].name,
            target=target.name,
            transport=weight_transport(asked, together=sources[target.model].group == target.group),
        )
        for target in targets
    )


def with_compiling(plan: Plan, shapes: Shapes) -> Plan:
    """The plan with it decided which engines compile their layers: of what trains or scores all that a job asks for, or
    those on CUDA whose model is not known to have experts."""
    engines = (engine.model_copy(update={"compiles": _compiles(plan, engine, shapes)}) for engine in plan.engines)
    return plan.model_copy(update={"engines": tuple(engines)})


def _compiles(plan: Plan, engine: EnginePlan, shapes: Shapes) -> bool:
    asked, shape = plan.spec.training.compile, shapes.get(engine.path)
    if engine.kind != "Train" or asked is not None:
        return engine.kind == "Train" and bool(asked)
    has_experts = engine.mesh.ep > 1 or (shape is not None and shape.experts is not None)
    return plan.group(engine.group).device == "cuda" and engine.library == "FSDP" and not has_experts


def with_recomputing(plan: Plan, shapes: Shapes, limits: Limits) -> Plan:
    """The plan with `Auto` decided for every group that trains. They are computed again where a worker would not fit
    otherwise, and where nobody can tell whether it would."""
    if plan.spec.training.memory.activation_checkpointing != "Auto":
        return plan
    kept = plan.model_copy(
        update={"engines": tuple(engine.model_copy(update={"recomputes": False}) for engine in plan.engines)}
    )
    memory = {item.group: item for item in memory_of(kept, shapes, limits)}
    short = {group.name for group in plan.groups if not _fits(group, memory.get(group.name), limits.get(group.name))}
    engines = (
        engine.model_copy(update={"recomputes": engine.trainable and engine.group in short}) for engine in plan.engines
    )
    return plan.model_copy(update={"engines": tuple(engines)})


def _fits(group: GroupPlan, memory: GroupMemory | None, limit: Limit | None) -> bool:
    """Whether a worker is known to have room for an update. One on CPUs that nobody limits has."""
    if limit is None:
        return group.device == "cpu"
    peaks = [phase.peak for phase in memory.phases if phase.phase == "train"] if memory is not None else []
    return bool(peaks) and max(peaks) <= limit.usable
