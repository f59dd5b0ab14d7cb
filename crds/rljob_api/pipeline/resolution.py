"""Stages with everything filled in that the user may leave out: models, columns, worker group.

Total: a job with mistakes resolves too, as far as it goes, so that validation can name all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from rljob_api.catalogue import profiles as built_in_profiles
from rljob_api.catalogue.columns import Columns, computes_full_kl
from rljob_api.catalogue.profiles import AcceleratorProfile
from rljob_api.catalogue.stages import STAGES, BuiltInStage, Use
from rljob_api.pipeline.dag import Graph
from rljob_api.pipeline.defaults import stages_of
from rljob_api.v1alpha1 import RLJobSpec, StageSpec
from rljob_api.v1alpha1.dag import UPDATE_POLICY
from rljob_api.vocabulary.keys import REFERENCE, ROLLOUT_GROUP


@dataclass(frozen=True)
class ResolvedStage:
    """A stage and what its catalogue entry and its job add to it."""

    spec: StageSpec
    built_in: BuiltInStage | None
    models: tuple[str, ...]
    columns: Columns
    """Under the names they have in the job."""

    @property
    def name(self) -> str:
        """The stage's name."""
        return self.spec.name

    @property
    def trains(self) -> bool:
        """Whether it updates its model."""
        return self.built_in is not None and self.built_in.use == "Trains"

    @property
    def generates(self) -> bool:
        """Whether it makes the rows."""
        return self.built_in is not None and self.built_in.use == "Generates"


class Resolution:
    """The stages of a job, resolved; the first of several stages with one name counts."""

    def __init__(self, spec: RLJobSpec) -> None:
        self.spec = spec
        self.declared = stages_of(spec)
        self.by_name = {stage.name: stage for stage in reversed(self.declared)}
        self.graph = Graph({stage.name: self.by_name[stage.name].after for stage in self.declared})

    @cached_property
    def trained_models(self) -> frozenset[str]:
        """Models that a stage updates."""
        return frozenset(
            model
            for stage in self.declared
            if _use(stage) == "Trains"
            for model in _models_of(stage, STAGES[stage.run])
        )

    @cached_property
    def sources(self) -> Mapping[str, frozenset[str]]:
        """For each stage, the stages that generate its rows, itself among them. One, in a job that can run."""
        generating = {name for name, stage in self.by_name.items() if _use(stage) == "Generates"}
        return {name: frozenset(generating & {name, *self.graph.ancestors(name)}) for name in self.by_name}

    def shares_rows(self, one: str, other: str) -> bool:
        """Whether two stages may see rows of one source; nobody knows it of a stage that no row gets to."""
        sources, others = self.sources[one], self.sources[other]
        return not sources or not others or bool(sources & others)

    def agents_of(self, name: str) -> frozenset[int]:
        """Places of the agents whose rows a stage works with: of those that its models score or train, in a team of
        several policies, otherwise of all."""
        every, stage = frozenset(range(len(self.spec.agents))), self.by_name[name]
        if not self.spec.is_team_of_policies or stage.run not in STAGES or _use(stage) == "Generates":
            return every
        models = _models_of(stage, STAGES[stage.run])
        return frozenset[int]().union(*map(self.spec.agents_of, models)) or every

    def makers_of(self, column: str, name: str) -> list[str]:
        """The stages that write a column of the rows that a stage sees and works with."""
        mine = self.agents_of(name)
        return [
            maker
            for maker in self.producers.get(column, ())
            if self.shares_rows(maker, name) and (not mine or mine & self.agents_of(maker))
        ]

    def columns_of(self, stage: StageSpec, entry: BuiltInStage) -> Columns:
        """What a stage of the catalogue reads and writes, under its own names: with the rewards, and the models in
        training, of the rows that it sees."""
        beside = [item for item in self.declared if self.shares_rows(item.name, stage.name)]
        rewards = [name for item in beside for name in item.rewards]
        trained = {model for item in beside if _use(item) == "Trains" for model in _models_of(item, STAGES[item.run])}
        models = _models_of(stage, entry)
        return entry.columns(self.spec.with_rewards(rewards), models, bool(trained.intersection(models)))

    @cached_property
    def stages(self) -> dict[str, ResolvedStage]:
        """Every stage, by name, in declaration order."""
        return {stage.name: self._resolve(self.by_name[stage.name]) for stage in self.declared}

    @cached_property
    def producers(self) -> dict[str, list[str]]:
        """For each column, the stages that write it."""
        producers: dict[str, list[str]] = {}
        for stage in self.stages.values():
            for column in stage.columns.writes:
                producers.setdefault(column, []).append(stage.name)
        return producers

    def engines_of(self, stage: ResolvedStage) -> tuple[str, ...]:
        """The models it has engines for: its own, and the policy's reference where the update compares whole
        distributions."""
        if stage.built_in is None:
            return ()
        if stage.spec.run != UPDATE_POLICY or not computes_full_kl(self.spec):
            return stage.models
        return stage.models + tuple(self.spec.beside(REFERENCE, policy) for policy in stage.models)

    def reads_of(self, stage: ResolvedStage) -> tuple[str, ...]:
        """The columns it gets: those it must have, and the optional ones that are there."""
        upstream = self.graph.ancestors(stage.name)
        optional = (c for c in stage.columns.optional if upstream.intersection(self.makers_of(c, stage.name)))
        return tuple(dict.fromkeys((*stage.columns.reads, *optional)))

    def _resolve(self, stage: StageSpec) -> ResolvedStage:
        entry = STAGES.get(stage.run)
        if entry is None:
            return ResolvedStage(stage, None, stage.models, Columns(stage.reads, stage.writes))
        columns = self.columns_of(stage, entry)
        renamed = Columns(
            reads=tuple(stage.rename.get(column, column) for column in columns.reads),
            writes=columns.writes,
            optional=tuple(stage.rename.get(column, column) for column in columns.optional),
        )
        return ResolvedStage(stage, entry, _models_of(stage, entry), renamed)


def assign_groups(resolution: Resolution) -> Mapping[str, str | None]:
    """The worker group of every stage; None where neither the job nor a rule says it.

    In this order: the group that the stage names; the only group there is; the group where another stage uses the
    same model in the same way; the group `rollout` for Rollout, Sample and Reward; the only other group for stages with
    a model and for Advantage; the group of the stages before it.
    """
    groups = [group.name for group in resolution.spec.worker_groups]
    if len(set(groups)) == 1:
        return {name: stage.spec.group or groups[0] for name, stage in resolution.stages.items()}
    placed = {name: stage.spec.group for name, stage in resolution.stages.items()}
    homes = {
        (model, stage.generates): stage.spec.group
        for stage in resolution.stages.values()
        for model in stage.models
        if stage.spec.group is not None
    }
    if resolution.graph.cycle():
        return placed
    for name in resolution.graph.order():
        if placed[name] is None:
            stage = resolution.stages[name]
            placed[name] = _home(stage, homes) or _by_rule(stage, groups) or _before(stage, placed)
    return placed


def lead_group_of(resolution: Resolution, placed: Mapping[str, str | None]) -> str | None:
    """The group of the first stage that updates a policy; None where there is none, or nothing says where it runs."""
    return next((placed[name] for name, stage in resolution.stages.items() if stage.spec.run == UPDATE_POLICY), None)


def is_elastic(spec: RLJobSpec, group: str | None) -> bool:
    """Whether the pods of a group come and go."""
    return spec.elastic_group is not None and spec.elastic_group.name == group


def _models_of(stage: StageSpec, entry: BuiltInStage) -> tuple[str, ...]:
    if stage.models or entry.default_model is None:
        return stage.models
    return (entry.default_model,)


def _use(stage: StageSpec) -> Use:
    """What a stage does with its model."""
    entry = STAGES.get(stage.run)
    return "None" if entry is None else entry.use


def _home(stage: ResolvedStage, homes: Mapping[tuple[str, bool], str | None]) -> str | None:
    result = (homes.get((model, stage.generates)) for model in stage.models)
    return next((group for group in result if group is not None), None)


def _by_rule(stage: ResolvedStage, groups: list[str]) -> str | None:
    others = [group for group in groups if group != ROLLOUT_GROUP]
    if len(others) == len(groups) or stage.built_in is None:
        return None
    if stage.spec.run in ("Rollout", "Sample", "Reward"):
        return ROLLOUT_GROUP
    return others[0] if len(others) == 1 else None


def _before(stage: ResolvedStage, placed: Mapping[str, str | None]) -> str | None:
    if stage.models:
        return None
    return next((placed[name] for name in stage.spec.after if placed.get(name) is not None), None)


def with_precision(
    spec: RLJobSpec, profiles: Mapping[str, AcceleratorProfile] = built_in_profiles.DEFAULT
) -> RLJobSpec:
    """The spec with `training.precision` written out; a model has one number format wherever it is computed."""
    if spec.training.precision != "Auto":
        return spec
    precision = "Float32" if "cpu" in _devices_of_models(spec, profiles) else "BFloat16"
    training = spec.training.model_copy(update={"precision": precision})
    return spec.model_copy(update={"training": training})


def _devices_of_models(spec: RLJobSpec, profiles: Mapping[str, AcceleratorProfile]) -> set[str]:
    """Device types of the groups in which a stage computes with a model."""
    resolution = Resolution(spec)
    placed = assign_groups(resolution)
    homes = {placed[name] for name, stage in resolution.stages.items() if stage.models}
    return {profiles[group.accelerator.profile].device for group in spec.worker_groups if group.name in homes}
