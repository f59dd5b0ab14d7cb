"""Where the checkpoints of a run are: in its directory, or in the object store that its job names."""

from pathlib import Path

from rljob_api.loading.document import read_document
from rljob_api.loading.structure import check_structure
from rljob_api.v1alpha1 import RLJob
from rljob_worker.storage.files import read_if_there
from rljob_worker.storage.paths import StoragePath, storage_path


def home_of(job: RLJob) -> StoragePath | None:
    """None: the run's directory. On one machine there is one namespace, and it has no name."""
    store = job.spec.object_store
    return None if store is None else storage_path(f"{store.uri.rstrip('/')}/{job.name}")


def home_of_directory(path: Path) -> StoragePath:
    """The home of a run that was begun in `path`."""
    text = read_if_there(path / "job.yaml")
    job = None if text is None else check_structure(read_document(text).value)[0]
    return (None if job is None else home_of(job)) or path
