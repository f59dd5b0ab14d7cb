"""A model in an object store, or at a revision of the Hub: its small files in a folder of this machine. Weights are
read from the store, each rank its rows; those of the Hub from its cache."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rljob_api.planning.plan import Plan
from rljob_api.vocabulary.data_url import hub_model, scheme_of
from rljob_worker.engines.models.sources.hub_snapshots import fetched, snapshot_of
from rljob_worker.errors import InvalidJob, StorageError
from rljob_worker.storage.object_path import ObjectPath
from rljob_worker.storage.paths import StoragePath, storage_path
from rljob_worker.storage.store_errors import is_for_good

ORIGIN = ".origin"
"""In a mirror: the URL of the directory it is of."""
_WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt", ".pth", ".h5", ".msgpack", ".onnx")


def origin_of(directory: Path) -> StoragePath:
    """Where the weights of a model's directory are: there, or in the store that it is a mirror of, or the Hub's
    cache."""
    path = path_in_job(str(directory))
    return fetched(path) if _is_pinned(path) else storage_path(path)


def path_in_job(path: str) -> str:
    """What the job calls the model of a directory: of a mirror, of which every process may have another, the URL."""
    note = Path(path) / ORIGIN
    return note.read_text() if note.is_file() else path


def with_mirrors(plan: Plan, cache: Path) -> Plan:
    """The plan as this process reads it: a model that is elsewhere has the path of its mirror. Raises InvalidJob for a
    folder that holds no model, StorageError for a store that does not answer."""
    paths = {engine.path for engine in plan.engines} | {model.path for model in plan.spec.models}
    result = {path: mirrored(path, cache) for path in sorted(paths) if _is_elsewhere(path)}
    return _replaced(plan, result) if result else plan


@contextmanager
def small_files(path: str) -> Iterator[str]:
    """A mirror of a model that is elsewhere, while it is looked at; any other path as it is."""
    if not _is_elsewhere(path):
        yield path
        return
    with tempfile.TemporaryDirectory() as scratch:
        yield mirrored(path, Path(scratch))


def mirrored(url: str, cache: Path) -> str:
    """The mirror of a model's folder; the URL of a run or a checkpoint as it is, of which a model is made by others."""
    if _is_pinned(url):
        snapshot = snapshot_of(url, without=[f"*{ending}" for ending in _WEIGHTS])
        files = [path for path in sorted(snapshot.iterdir()) if path.is_file() and not path.name.endswith(_WEIGHTS)]
        return str(_made(url, files, cache / "models" / _fingerprint(url, {snapshot.name: len(files)})))
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
        return str(_made(url, small, cache / "models" / _fingerprint(url, sizes)))
    except OSError as error:
        if isinstance(error, InvalidJob | StorageError):
            raise
        kind = InvalidJob if is_for_good(error) else StorageError
        raise kind(f"model path {url!r}: {error.strerror}") from error


def _made(origin: str, small: Sequence[StoragePath], target: Path) -> Path:
    """Copy the small files to `target`: the first process of a machine to finish wins, others remove theirs."""
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(prefix=".", dir=target.parent))
    for path in small:
        (making / path.name).write_bytes(path.read_bytes())
    (making / ORIGIN).write_text(origin)
    try:
        making.rename(target)
    except OSError:
        shutil.rmtree(making, ignore_errors=True)
        if not target.is_dir():
            raise
    return target


def _is_elsewhere(path: str) -> bool:
    return scheme_of(path) is not None or _is_pinned(path)


def _is_pinned(path: str) -> bool:
    """A model of the Hub at a revision, and no folder that happens to be called so."""
    return hub_model(path).revision is not None and not Path(path).is_dir()


def _fingerprint(url: str, sizes: Mapping[str, int]) -> str:
    return hashlib.sha256(json.dumps([url, sizes], sort_keys=True).encode()).hexdigest()[:16]


def _replaced(plan: Plan, paths: Mapping[str, str]) -> Plan:
    engines = tuple(engine.model_copy(update={"path": paths.get(engine.path, engine.path)}) for engine in plan.engines)
    models = tuple(model.model_copy(update={"path": paths.get(model.path, model.path)}) for model in plan.spec.models)
    return plan.model_copy(update={"engines": engines, "spec": plan.spec.model_copy(update={"models": models})})
