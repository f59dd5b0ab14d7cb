"""The policy that a run trained, as a model that another job only scores with."""

from __future__ import annotations

from rljob_api.planning.plan import EnginePlan, Plan
from rljob_api.vocabulary import keys
from rljob_worker.checkpoint.manifest import Committed, committed, damage, read_manifest
from rljob_worker.checkpoint.writer import engine_folder
from rljob_worker.engines.protocols import TrainedModel
from rljob_worker.errors import InvalidJob, StorageError
from rljob_worker.rundir.plan import read_plan
from rljob_worker.storage.place import Place, place_of


def trained_elsewhere(plan: Plan, engine: EnginePlan) -> TrainedModel | None:
    """The model of an engine that only scores, where a run trained it. Raises as `trained_model` does."""
    is_scorer = not (engine.trainable or plan.has_value_head(engine))
    return trained_model(engine.path) if is_scorer else None


def trained_model(path: str) -> TrainedModel | None:
    """The actor of the newest checkpoint of a run directory, or of one checkpoint's directory; None for a path that is
    neither. Raises StorageError when the checkpoint is damaged, InvalidJob when it holds an adapter alone."""
    source = place_of(path)
    checkpoint = _checkpoint(source)
    if checkpoint is None:
        return None
    if problem := damage(checkpoint):
        raise StorageError(f"model path {path!r}: the checkpoint of step {checkpoint.step} is damaged: {problem}")
    engine = read_plan(checkpoint.path.parent.parent / keys.PLAN_KEY).actor_engine
    if engine.adapter is not None:
        raise InvalidJob(
            f"model path {path!r}: this run trained an adapter, which is no whole model; "
            "`rljob export --merged` makes one of it"
        )
    return TrainedModel(engine.path, checkpoint.path / "engines" / engine_folder(engine.name))


def _checkpoint(source: Place) -> Committed | None:
    if not source.is_dir():
        return None
    manifest = read_manifest(source)
    found = [Committed(source, manifest)] if manifest else committed(source / "checkpoints")
    return found[-1] if found else None
