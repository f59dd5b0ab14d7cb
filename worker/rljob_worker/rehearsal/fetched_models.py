"""Models of stores and of the hub as a rehearsal looks at them: their small files, and empty ones for their weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from rljob_api.vocabulary.data_url import scheme_of
from rljob_worker.errors import InvalidJob, StorageError
from rljob_worker.rehearsal.model_files import INDEX
from rljob_worker.rehearsal.stored_rows import PATIENCE_SECONDS
from rljob_worker.storage.failure import is_for_good
from rljob_worker.storage.object_path import ObjectPath
from rljob_worker.storage.place import place_of

READ = ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", INDEX)
"""Files that are looked into; of all others that they are there."""


def fetched_model(path: str, into: Path) -> Path:
    """A folder below `into`. Raises InvalidJob for what is not there, StorageError for what does not answer."""
    folder = into / path.replace("://", "/")
    folder.mkdir(parents=True, exist_ok=True)
    if scheme_of(path) is None:
        _from_hub(path, folder)
    else:
        _from_store(path, folder)
    return folder


def _from_store(url: str, folder: Path) -> None:
    place = place_of(url, PATIENCE_SECONDS)
    assert isinstance(place, ObjectPath), f"{url} is on a disk"
    try:
        _fill(folder, place.bucket.children(place.key), lambda key: place.bucket.read(key))
    except OSError as error:
        raise (InvalidJob if is_for_good(error) else StorageError)(f"{url}: {error.strerror}") from error


def _from_hub(name: str, folder: Path) -> None:
    from httpx2 import HTTPError
    from huggingface_hub import HfApi, hf_hub_download
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    try:
        files = [each.rfilename for each in HfApi().model_info(name).siblings or () if "/" not in each.rfilename]
        _fill(folder, files, lambda file: Path(hf_hub_download(name, file)).read_bytes())
    except HFValidationError as error:
        raise InvalidJob(f"{name} is neither a directory here nor a name of the hub; correct it") from error
    except GatedRepoError as error:
        raise StorageError(f"{name}, which the hub shows to those alone whom its owner admits") from error
    except RepositoryNotFoundError as error:
        raise InvalidJob(
            f"the hub shows no model {name}; correct the name, or HF_TOKEN and HF_ENDPOINT of the environment"
        ) from error
    except (HTTPError, OSError) as error:
        raise StorageError(f"{name}: the hub did not answer: {str(error).partition(chr(10))[0]}") from error


def _fill(folder: Path, names: Iterable[str], read: Callable[[str], bytes]) -> None:
    """names: keys, of which the last part is the name of a file."""
    for name in names:
        file = folder / name.rpartition("/")[2]
        file.write_bytes(read(name) if file.name in READ else b"")
