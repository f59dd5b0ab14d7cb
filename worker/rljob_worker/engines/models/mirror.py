"""A model in an object store: its small files on this machine, its weights read from the store, each rank its rows."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rljob_api.planning.plan import Plan
from rljob_api.vocabulary.data_url import scheme_of
from rljob_worker.errors import InvalidJob, StorageError
from rljob_worker.storage.object_path import ObjectPath
from rljob_worker.storage.paths import StoragePath, storage_path
from rljob_worker.storage.store_errors import is_for_good

ORIGIN = ".origin"
"""In a mirror: the URL of the directory it is of."""
_WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt", ".pth", ".h5", ".msgpack", ".onnx")


def origin_of(directory: Path) -> StoragePath:
    """Where the weights of a model's directory are: there, or in the store that it is a mirror of."""
    return storage_path(path_in_job(str(directory)))


def path_in_job(path: str) -> str:
    """What the job calls the model of a directory: of a mirror, of which every process may have another, the URL."""
    note = Path(path) / ORIGIN
    return note.read_text() if note.is_file() else path


def with_mirrors(plan: Plan, cache: Path) -> Plan:
    """The plan as this process reads it: a model in a store has the path of its mirror. Raises InvalidJob for a folder
    that holds no model, StorageError for a store that does not answer."""
    paths = {engine.path for engine in plan.engines} | {model.path for model in plan.spec.models}
    result = {path: mirrored(path, cache) for path in sorted(paths) if scheme_of(path) is not None}
    return _replaced(plan, result) if result else plan


@contextmanager
def small_files(path: str) -> Iterator[str]:
    """A mirror of a model in a store, while it is looked at; any other path as it is."""
    if scheme_of(path) is None:
        yield path
        return
    with tempfile.TemporaryDirectory() as scratch:
        yield mirrored(path, Path(scratch))


def mirrored(url: str, cache: Path) -> str:
    """The mirror of a model's folder; the URL of a run or a checkpoint as it is, of which a model is made by others."""
    folder = storage_path(url)
    assert isinstance(folder, ObjectPath), f"{url} is on a disk"
    try:
        there = {path.name: path for path in folder.iterdir()}
        if not {"manifest.json", "checkpoints"}.isdisjoint(there):
            return url
        if "config.json" not in there:
            raise InvalidJob(f"model path {url!r}: no config.json in it; name the folder that holds the model")
        sizes = folder.sizes()
        small = [there[name] for name in sorted(there) if name in sizes and not name.endswith(_WEIGHTS)]
        return str(_made(folder, small, cache / "models" / _fingerprint(url, sizes)))
    except OSError as error:
        if isinstance(error, InvalidJob | StorageError):
            raise
        kind = InvalidJob if is_for_good(error) else StorageError
        raise kind(f"model path {url!r}: {error.strerror}") from error


def _made(folder: ObjectPath, small: list[ObjectPath], target: Path) -> Path:
    """Copy the small files to `target`: the first process of a machine to finish wins, others remove theirs."""
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(prefix=".", dir=target.parent))
    for path in small:
        (making / path.name).write_bytes(path.read_bytes())
    (making / ORIGIN).write_text(str(folder))
    try:
        making.rename(target)
    except OSError:
        shutil.rmtree(making, ignore_errors=True)
        if not target.is_dir():
            raise
    return target


def _fingerprint(url: str, sizes: Mapping[str, int]) -> str:
    return hashlib.sha256(json.dumps([url, sizes], sort_keys=True).encode()).hexdigest()[:16]


def _replaced(plan: Plan, paths: Mapping[str, str]) -> Plan:
    engines = tuple(engine.model_copy(update={"path": paths.get(engine.path, engine.path)}) for engine in plan.engines)
    models = tuple(model.model_copy(update={"path": paths.get(model.path, model.path)}) for model in plan.spec.models)
    return plan.model_copy(update={"engines": engines, "spec": plan.spec.model_copy(update={"models": models})})
