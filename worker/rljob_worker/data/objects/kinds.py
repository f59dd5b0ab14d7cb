"""Which objects of a listing hold rows, and of what kind: pure."""

from __future__ import annotations

from collections import Counter
from pathlib import PurePosixPath

from rljob_api.vocabulary.data_url import COMPRESSED, hub_data
from rljob_worker.data.listing import DataFile, Listing
from rljob_worker.errors import BadData

PARQUET, LINES = "Parquet", "JSON-lines"

_KINDS = {".parquet": PARQUET, ".jsonl": LINES, ".ndjson": LINES, ".json": LINES}
_NOT_ROWS = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")


def row_objects(path: str, listing: Listing) -> tuple[str, Listing]:
    """The files of a listing that hold rows, and their one kind. Raises BadData."""
    if not listing:
        raise BadData(f"nothing is at {path}: no object matches it")
    if any(_name(file) == "state.json" for file in listing):
        raise BadData(f"{path} is what save_to_disk wrote, which is read from disks alone; store it as Parquet")
    files = tuple(file for file in listing if _kind(file) is not None)
    kinds = Counter(_kind(file) for file in files)
    if len(kinds) != 1:
        result = f"holds {' and '.join(sorted(map(str, kinds)))} files" if kinds else f"holds {_others(listing)}"
        raise BadData(f"a data set in a store is Parquet files or JSON-lines files; {path} {result}{_copy(path)}")
    for file in files:
        if not file.size:
            raise BadData(f"{file.path} is empty")
    return str(next(iter(kinds))), files


def _copy(path: str) -> str:
    """What else may be read of a data set of the Hub, which makes Parquet of other formats."""
    hub = hub_data(path)
    if hub is None:
        return ""
    copy = f"hf://datasets/{hub.name}@refs%2Fconvert%2Fparquet"
    return f"; the Hub makes Parquet of public data sets: {copy}/SUBSET/SPLIT/*.parquet"


def _others(listing: Listing) -> str:
    packed = [file for file in listing if file.path.endswith(COMPRESSED)]
    if packed:
        return f"{_name(packed[0])}, whose rows cannot be read one by one: store it uncompressed, or as Parquet"
    return ", ".join(_name(file) for file in listing[:5])


def _kind(file: DataFile) -> str | None:
    name = _name(file)
    return None if name in _NOT_ROWS else _KINDS.get(PurePosixPath(name).suffix.lower())


def _name(file: DataFile) -> str:
    return file.path.rpartition("/")[2]
