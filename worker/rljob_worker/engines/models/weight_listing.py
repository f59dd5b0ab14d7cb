"""Which files have the weights of a model, and what is said of those that have none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from rljob_worker.engines.models.value_model import VALUE_HEAD
from rljob_worker.errors import BadData, InvalidJob, StorageError
from rljob_worker.storage.paths import StoragePath
from rljob_worker.weight_index import INDEX, files_by_tensor

_SINGLE = "model.safetensors"
_OTHER_FORMATS = ("pytorch_model*", "*.bin", "*.gguf", "*.pt", "*.pth", "*.h5", "*.msgpack", "*.safetensors")
_NAMED = 3
"""Names that a message spells out."""


def files_with_weights(path: str, directory: StoragePath) -> list[StoragePath]:
    """The files that the index names, else the one file; others of that kind are copies in the layout of another
    library."""
    index = directory / INDEX
    if index.is_file():
        with reading(path, index):
            files = [directory / name for name in sorted(set(files_by_tensor(json.loads(index.read_text())).values()))]
        if absent := [file.name for file in files if not file.is_file()]:
            raise BadData(f"model path {path!r}: {INDEX} names {file_list(absent)}, which is not there; fetch it again")
        return files
    if (directory / _SINGLE).is_file():
        return [directory / _SINGLE]
    raise InvalidJob(f"model path {path!r}: {_no_weights(directory)}")


def _no_weights(directory: StoragePath) -> str:
    result = {file.name for pattern in _OTHER_FORMATS for file in directory.glob(pattern)} - {VALUE_HEAD}
    random = "to train random weights set models[].initialise: Random"
    if not result:
        return f"there are no weights in it ({_SINGLE} or {INDEX}); {random}"
    return (
        f"its weights are in another format ({file_list(sorted(result))}); save them as {_SINGLE}, as "
        "save_pretrained of "
        f"transformers does; {random}"
    )


def file_list(names: list[str]) -> str:
    """The first of some names, and how many more there are."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


@contextmanager
def reading(path: str, file: StoragePath) -> Iterator[None]:
    """What goes wrong in a file of the model `path` is damage to it, or the store that has it."""
    try:
        yield
    except (SafetensorError, OSError, RuntimeError, ValueError, KeyError) as error:
        if isinstance(error, BadData):
            raise
        reason = str(error).splitlines()[0]
        if isinstance(error, OSError) and not isinstance(file, Path):
            raise StorageError(f"model path {path!r}: cannot read {file}: {error.strerror}") from error
        raise BadData(
            f"model path {path!r}: cannot read its weights in {file.name}: {reason}; fetch the model again"
        ) from error
