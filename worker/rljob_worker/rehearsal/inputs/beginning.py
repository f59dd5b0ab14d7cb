"""The run or checkpoint that weights come from in place of those of the models: is it one, and of the same models?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from rljob_api.memory.model_shape import ModelShape
from rljob_api.planning.plan import Plan
from rljob_api.v1alpha1 import RLJobSpec
from rljob_api.vocabulary import keys
from rljob_api.vocabulary.data_url import scheme_of
from rljob_api.vocabulary.problem import Problem
from rljob_worker.checkpoint.manifest import committed, read_manifest
from rljob_worker.errors import InvalidJob
from rljob_worker.model_shapes import shape_at
from rljob_worker.rehearsal.finding import Finding
from rljob_worker.rundir.plan import read_plan

FIELD = "spec.checkpoint.initFrom"
_COMPARED = ("vocabulary", "hidden", "intermediate", "layers", "heads", "key_heads", "head_dim", "experts")


def beginning_findings(spec: RLJobSpec, folder: Path) -> Iterator[Finding]:
    """Findings on a directory here; what is in a store, and what is not there, others report."""
    named = spec.checkpoint.init_from
    if named is None or scheme_of(named) is not None or not (place := folder / Path(named).expanduser()).exists():
        return
    is_checkpoint = read_manifest(place) is not None
    if not is_checkpoint and not committed(place / "checkpoints"):
        message = "it is neither a run directory with a checkpoint nor a checkpoint directory"
        fix = "To start from a Hugging Face model give its path under models."
        yield Finding(Problem(FIELD, named, message, fix))
        return
    begun = _shapes_of_run(place.resolve().parent.parent if is_checkpoint else place)
    for model in spec.models:
        there, here = begun.get(model.name), shape_at(folder / Path(model.path).expanduser())
        if there is not None and here is not None and (difference := _difference(there, here)):
            message = f"its {model.name} has {difference}: weights of one do not fit the other"
            fix = f"Name a run of the same model, or write the path of that run's model as path of {model.name}."
            yield Finding(Problem(FIELD, named, message, fix))


def _shapes_of_run(run: Path) -> Mapping[str, ModelShape]:
    """By name of the model; nothing where the run's plan or its models cannot be read."""
    try:
        plan: Plan = read_plan(run / keys.PLAN_KEY)
    except InvalidJob:
        return {}
    shapes = ((model.name, shape_at(Path(model.path))) for model in plan.spec.models)
    return {name: shape for name, shape in shapes if shape is not None}


def _difference(there: ModelShape, here: ModelShape) -> str:
    """`layers 2 where this job's has 4`; empty where weights of one fit the other."""
    if there.family != here.family:
        return "another architecture than this job's"
    return ", ".join(
        f"{name} {getattr(there, name)} where this job's has {getattr(here, name)}"
        for name in _COMPARED
        if getattr(there, name) != getattr(here, name)
    )
