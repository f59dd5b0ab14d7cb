"""A policy that a run trained, as a model that another job only scores with."""

from __future__ import annotations

from collections.abc import Sequence

from rljob_api.planning.plan import EnginePlan, Plan
from rljob_api.vocabulary import keys
from rljob_worker.checkpoint.manifest import Committed, committed, damage, read_manifest
from rljob_worker.checkpoint.writer import engine_folder
from rljob_worker.engines.protocols import TrainedModel
from rljob_worker.errors import InvalidJob, StorageError
from rljob_worker.rundir.plan import read_plan
from rljob_worker.storage.paths import StoragePath, storage_path


def trained_elsewhere(plan: Plan, engine: EnginePlan) -> TrainedModel | None:
    """The model of an engine that only scores, where a run trained it. Raises as `trained_model` does."""
    is_scorer = not (engine.trainable or plan.has_value_head(engine))
    return trained_model(engine.path, engine.model) if is_scorer else None


def trained_model(path: str, name: str) -> TrainedModel | None:
    """The policy of the newest checkpoint of a run directory, or of one checkpoint's directory; None for a path that is
    neither. name: of the policy, where the run trained several. Raises StorageError when the checkpoint is damaged,
    InvalidJob when it holds an adapter alone, and when none of several has the name."""
    source = storage_path(path)
    checkpoint = _checkpoint(source)
    if checkpoint is None:
        return None
    if problem := damage(checkpoint):
        raise StorageError(f"model path {path!r}: the checkpoint of step {checkpoint.step} is damaged: {problem}")
    plan = read_plan(checkpoint.path.parent.parent / keys.PLAN_KEY)
    engine = plan.trainer_of(_chosen(plan.spec.policies, path, name))
    if engine.adapter is not None:
        raise InvalidJob(
            f"model path {path!r}: this run trained an adapter, which is not a whole model; "
            "`rljob export --merged` makes one of it"
        )
    return TrainedModel(engine.path, checkpoint.path / "engines" / engine_folder(engine.name))


def _chosen(policies: Sequence[str], path: str, name: str) -> str:
    if len(policies) == 1:
        return policies[0]
    if name not in policies:
        raise InvalidJob(
            f"model path {path!r}: this run trained the policies {', '.join(policies)}, and this model is called "
            f"{name}; give it the name of one, or export that one with `rljob export --model`"
        )
    return name


def _checkpoint(source: StoragePath) -> Committed | None:
    if not source.is_dir():
        return None
    manifest = read_manifest(source)
    result = [Committed(source, manifest)] if manifest else committed(source / "checkpoints")
    return result[-1] if result else None
