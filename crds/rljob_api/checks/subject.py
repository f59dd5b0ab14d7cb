"""`Subject`: the job under check and what follows from it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rljob_api.catalogue.profiles import AcceleratorProfile
from rljob_api.catalogue.stages import STAGES
from rljob_api.pipeline.resolution import Resolution, assign_groups
from rljob_api.v1alpha1 import RLJobSpec, StageSpec
from rljob_api.v1alpha1.infrastructure import AcceleratorSpec
from rljob_api.vocabulary.problem import Problem, nearest


@dataclass(frozen=True)
class Subject:
    """A spec, the accelerator profiles there are, and the resolved stages."""

    spec: RLJobSpec
    profiles: Mapping[str, AcceleratorProfile]

    @cached_property
    def resolution(self) -> Resolution:
        """The stages with models and columns filled in."""
        return Resolution(self.spec)

    @cached_property
    def placed(self) -> Mapping[str, str | None]:
        """The worker group of each stage."""
        return assign_groups(self.resolution)

    @cached_property
    def model_names(self) -> tuple[str, ...]:
        """Models that stages may name: the listed ones, and copies of the policy."""
        names = [model.name for model in self.spec.models]
        return tuple(dict.fromkeys([*names, *self.spec.derived_models]))

    @cached_property
    def group_names(self) -> tuple[str, ...]:
        """Worker groups."""
        return tuple(group.name for group in self.spec.worker_groups)

    @property
    def makes_rows(self) -> bool:
        """Whether a step begins anywhere."""
        return any(stage.generates for stage in self.resolution.stages.values())

    @cached_property
    def missing_source(self) -> str | None:
        """The name that stages come after and that no stage has, in a DAG where no stage makes rows: it was meant to.
        None where that is not clear."""
        names = {stage.name for stage in self.resolution.declared}
        absent = {name for stage in self.resolution.declared for name in stage.after} - names
        is_one = len(absent) == 1 and not self.makes_rows
        return next((name for name in absent if is_one and nearest(name, list(names)) is None), None)

    @cached_property
    def accelerators(self) -> tuple[tuple[str, AcceleratorSpec], ...]:
        """Those of workers and of models beside the job, each with its place in the YAML."""
        groups = [(f"spec.workerGroups[{i}]", item.accelerator) for i, item in enumerate(self.spec.worker_groups)]
        served = [
            (f"spec.services[{i}].workerGroup", item.worker_group.accelerator)
            for i, item in enumerate(self.spec.services)
        ]
        return tuple((f"{path}.accelerator", item) for path, item in (*groups, *served))

    def stage_path(self, name: str, field: str = "") -> str:
        """Where a stage stands in the YAML; for the algorithm's own pipeline, what it is called."""
        if self.spec.dag is None:
            return f"spec.dag (unset: stage {name} of {self.spec.algorithm.name}'s own pipeline)"
        index = next(i for i, stage in enumerate(self.spec.dag.stages) if stage.name == name)
        return f"spec.dag.stages[{index}]" + (f".{field}" if field else "")


def problem(path: str, result: Any, message: str, fix: str) -> Problem:
    """A Problem with `found` written as YAML; None for nothing."""
    return Problem(path, "" if result is None else json.dumps(result, ensure_ascii=False), message, fix)


def with_names_corrected(spec: RLJobSpec, model_names: tuple[str, ...]) -> RLJobSpec:
    """The spec with misspelt names of stages, models and groups replaced by what was probably meant.

    One misspelt name is one problem; without this, every check that follows it would report it again in its own words.
    """
    if spec.dag is None:
        return spec
    stage_names = [stage.name for stage in spec.dag.stages]
    group_names = [group.name for group in spec.worker_groups]

    def right(name: str, known: list[str]) -> str:
        return name if name in known else nearest(name, known) or name

    def correct(stage: StageSpec) -> StageSpec:
        run = stage.run if ":" in stage.run else right(stage.run, list(STAGES))
        after = tuple(right(name, [n for n in stage_names if n != stage.name]) for name in stage.after)
        models = tuple(right(name, list(model_names)) for name in stage.models)
        group = stage.group and right(stage.group, group_names)
        return stage.model_copy(update={"run": run, "after": after, "models": models, "group": group})

    dag = spec.dag.model_copy(update={"stages": tuple(correct(stage) for stage in spec.dag.stages)})
    return spec.model_copy(update={"dag": dag})
