"""Models of stores and of the hub as a rehearsal looks at them: their small files, and empty ones for their weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from rljob_api.vocabulary.data_url import hub_model, scheme_of
from rljob_worker.errors import InvalidJob, NotHere, StorageError
from rljob_worker.process.bounded import HUB_SECONDS, within
from rljob_worker.rehearsal.inputs.first_rows import LOOK_RETRY_SECONDS
from rljob_worker.storage.object_path import ObjectPath
from rljob_worker.storage.paths import storage_path
from rljob_worker.storage.store_errors import is_for_good
from rljob_worker.weight_index import INDEX

READ = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "preprocessor_config.json",
    "processor_config.json",
    INDEX,
)
"""Files that are looked into; of all others that they are there."""


def fetched_model(path: str, into: Path) -> Path:
    """A folder below `into`, or of the hub's cache. Raises InvalidJob for what is not there, NotHere, StorageError for
    a store that does not answer."""
    folder = into / path.replace("://", "/")
    folder.mkdir(parents=True, exist_ok=True)
    if scheme_of(path) is None:
        return _from_hub(path, folder)
    _from_store(path, folder)
    return folder


def _from_store(url: str, folder: Path) -> None:
    place = storage_path(url, LOOK_RETRY_SECONDS)
    assert isinstance(place, ObjectPath), f"{url} is on a disk"
    try:
        _fill(folder, place.bucket.children(place.key), lambda key: place.bucket.read(key))
    except OSError as error:
        raise (InvalidJob if is_for_good(error) else StorageError)(f"{url}: {error.strerror}") from error


def _from_hub(path: str, folder: Path) -> Path:
    from httpx2 import HTTPError
    from huggingface_hub import HfApi, get_token, hf_hub_download
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

    model = hub_model(path)
    name, revision = model.name, model.revision

    def files_there() -> list[str]:
        result = HfApi().model_info(name, revision=revision, timeout=HUB_SECONDS).siblings or ()
        return [item.rfilename for item in result if "/" not in item.rfilename]

    def read(file: str) -> bytes:
        return Path(hf_hub_download(name, file, revision=revision, etag_timeout=HUB_SECONDS)).read_bytes()

    try:
        _fill(folder, within(HUB_SECONDS, files_there), read)
        return folder
    except HFValidationError as error:
        raise InvalidJob(f"{name} is neither a directory here nor a name of the hub; correct it") from error
    except RevisionNotFoundError as error:
        why = f"the hub has no revision {revision} of the model {name}; name a branch, a tag or a commit"
        raise InvalidJob(why) from error
    except GatedRepoError as error:
        return _from_cache(path, "the hub shows it only to those that its owner admits", error)
    except RepositoryNotFoundError as error:
        why = f"the hub shows no model {name}"
        if get_token() is None:
            return _from_cache(path, f"{why} without an HF_TOKEN", error)
        raise InvalidJob(f"{why}; correct the name, or HF_TOKEN and HF_ENDPOINT of the environment") from error
    except TimeoutError as error:
        return _from_cache(path, f"the hub did not answer within {HUB_SECONDS:g} s", error)
    except (HTTPError, OSError) as error:
        return _from_cache(path, f"the hub did not answer: {str(error).partition(chr(10))[0]}", error)


def _from_cache(path: str, why: str, cause: Exception) -> Path:
    """What is left where the hub gives nothing. Raises NotHere."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    model = hub_model(path)
    try:
        return Path(snapshot_download(model.name, revision=model.revision, local_files_only=True))
    except LocalEntryNotFoundError:
        raise NotHere(
            f"there is no directory {path} here, {why}, and its cache here does not have the model; correct the name, "
            "see to the network or HF_TOKEN, or download the model elsewhere and name its directory"
        ) from cause


def _fill(folder: Path, names: Iterable[str], read: Callable[[str], bytes]) -> None:
    """names: keys, of which the last part is the name of a file."""
    for name in names:
        file = folder / name.rpartition("/")[2]
        file.write_bytes(read(name) if file.name in READ else b"")
