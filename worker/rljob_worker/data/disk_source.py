"""Data sets on disk as memory-mapped tables: a file, a pattern, a folder of files, or what `save_to_disk` wrote.

Nothing is downloaded. Files are converted once into `cache_dir` by the `datasets` library, which locks before it looks:
which tables came out is kept beside, so that only who converts takes that lock. Row numbers in messages count from 0.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rljob_worker.data.find_or_make import Beat, find_or_make
from rljob_worker.data.listing import DataFile, Listing, to_json
from rljob_worker.data.source import (
    BATCH_ROWS,
    DatasetSpec,
    Places,
    Rows,
    nearest_of,
    no_column,
    record_of,
    stem,
    top_of,
    value_of,
)
from rljob_worker.errors import BadData, StorageError

if TYPE_CHECKING:
    from datasets import Dataset

_READERS = {".parquet": "parquet", ".jsonl": "json", ".ndjson": "json", ".json": "json"}
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


@dataclass(frozen=True)
class DiskSource:
    """One opened data set; the place of a row is its number."""

    name: str
    path: str
    files: Listing
    table: Dataset
    columns: tuple[str, ...]

    def scan(self) -> Iterator[Rows]:
        for start in range(0, len(self.table), BATCH_ROWS):
            stop = min(start + BATCH_ROWS, len(self.table))

            def where(i: int, start: int = start) -> str:
                return f"row {start + i} of {self.path}"

            places = np.arange(start, stop, dtype=np.int64)[:, None]
            yield Rows(places, self._values(self.table[start:stop]), where)

    def read(self, places: Places) -> dict[str, list[Any]]:
        return self._values(self.table[places[:, 0].tolist()])

    def where(self, place: NDArray[np.int64]) -> str:
        return f"row {place[0]} of {self.path}"

    def list_files(self) -> Listing:
        return _listing(_files(self.path))

    def _values(self, found: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
        tops = {name: top_of(name, self.table.column_names) for name in self.columns}
        return {name: [value_of({top: value}, name) for value in found[top]] for name, top in tops.items()}


def open_on_disk(spec: DatasetSpec, columns: Sequence[str], cache_dir: Path) -> DiskSource:
    """Open one data set of the job.

    Raises BadData: nothing at the path, an unknown kind of file, an unreadable file, no rows, no such column.
    StorageError: no room in the cache.
    """
    files = _files(spec.path)
    listing = _listing(files)
    table = _load(spec.path, files, cache_dir)
    if not len(table):
        raise BadData(_no_rows(spec.path))
    tops = [top_of(name, table.column_names) for name in columns]
    for name, top in zip(columns, tops, strict=True):
        if top not in table.column_names:
            raise BadData(no_column(spec.path, name, table.column_names))
    table = table.select_columns(list(dict.fromkeys(tops)))
    return DiskSource(spec.name or stem(spec.path), spec.path, listing, table, tuple(columns))


def _listing(files: Sequence[Path]) -> Listing:
    """Of the files that hold rows, or say how to read them."""
    found = ((file, file.stat()) for file in files if _kind(file) is not None or file.suffix == ".arrow")
    return tuple(DataFile(str(file.absolute()), stat.st_size, str(stat.st_mtime_ns)) for file, stat in found)


def _files(path: str) -> tuple[Path, ...]:
    """The files a path stands for, sorted."""
    place = Path(path)
    if place.is_dir():
        files = [file for file in sorted(place.rglob("*")) if file.is_file() and not file.name.startswith(".")]
    elif glob.has_magic(path) and not place.exists():
        files = [Path(file) for file in sorted(glob.glob(path, recursive=True))]
    else:
        files = [place] if place.exists() else []
    if not files:
        raise BadData(_nothing_at(path))
    return tuple(files)


def _load(path: str, files: Sequence[Path], cache_dir: Path) -> Dataset:
    import datasets

    datasets.disable_progress_bars()
    logging.getLogger("datasets").setLevel(logging.CRITICAL)  # failures are raised below, in the words of the job
    names = {file.name for file in files}
    if Path(path).is_dir() and "dataset_dict.json" in names:
        splits = sorted({file.relative_to(path).parts[0] for file in files if file.name == "state.json"})
        raise BadData(f"{path} holds several splits; name one: {' or '.join(f'{path}/{split}' for split in splits)}")
    try:
        if Path(path).is_dir() and "state.json" in names:
            return datasets.Dataset.load_from_disk(path)
        return _read(path, files, cache_dir)
    except BadData:
        raise
    except (datasets.exceptions.DatasetsError, pa.ArrowException, OSError, ValueError) as error:
        raise _unreadable(path, files, error) from error


def _read(path: str, files: Sequence[Path], cache_dir: Path) -> Dataset:
    import datasets

    data = [file for file in files if _kind(file) is not None]
    kinds = {_kind(file) for file in data}
    if len(kinds) != 1:
        found = f"holds {' and '.join(sorted(map(str, kinds)))} files" if kinds else "is none of them"
        raise BadData(
            f"a data set is parquet files, JSON-lines files, or a folder that save_to_disk wrote; {path} {found}"
        )
    for file in data:
        if not file.stat().st_size:
            raise BadData(f"{file} is empty")
    tables = _tables(path, data, kinds == {"json"}, cache_dir)
    return datasets.concatenate_datasets([datasets.Dataset.from_file(str(table)) for table in tables])


def _tables(path: str, data: Sequence[Path], is_json: bool, cache_dir: Path) -> list[Path]:
    """The Arrow files that some files were converted to: found by looking, made by one rank of the job."""
    import datasets

    identity = json.dumps([datasets.__version__, is_json, to_json(_listing(data))])
    place = cache_dir / "tables" / f"{hashlib.sha256(identity.encode()).hexdigest()[:32]}.tables"

    def make(beat: Beat) -> Iterator[bytes]:
        made = _convert(path, data, is_json, cache_dir)
        yield json.dumps([os.path.relpath(file["filename"], cache_dir) for file in made.cache_files]).encode()

    tables = [cache_dir / name for name in json.loads(bytes(find_or_make(place, make)))]
    if all(table.exists() for table in tables):
        return tables
    place.unlink(missing_ok=True)  # somebody tidied the cache
    return [cache_dir / name for name in json.loads(bytes(find_or_make(place, make)))]


def _convert(path: str, data: Sequence[Path], is_json: bool, cache_dir: Path) -> Dataset:
    import datasets

    if is_json:
        return datasets.Dataset.from_json([str(file) for file in data], cache_dir=str(cache_dir))
    # the library stumbles over a part of no rows
    filled = [str(file) for file in data if pq.read_metadata(file).num_rows]
    if not filled:
        raise BadData(_no_rows(path))
    return datasets.Dataset.from_parquet(filled, cache_dir=str(cache_dir))


def _kind(file: Path) -> str | None:
    name = file.name.removesuffix(".gz")
    return None if name in ("dataset_info.json", "dataset_infos.json") else _READERS.get(Path(name).suffix.lower())


def _unreadable(path: str, files: Sequence[Path], error: BaseException) -> Exception:
    """The error in the job's words: a full disk, the first bad line of a JSON file, or the library's own reason."""
    causes = list(_causes(error))
    for cause in causes:
        if isinstance(cause, OSError) and cause.errno in _FULL:
            return StorageError(f"no room to convert {path} for reading: {cause}")
    for file in files:
        if _kind(file) == "json" and (problem := first_bad_line(file)):
            return BadData(problem)
    reason = str(causes[-1]).strip().splitlines()
    return BadData(f"{path} cannot be read: {type(causes[-1]).__name__}: {reason[0] if reason else 'no reason given'}")


def first_bad_line(file: Path) -> str | None:
    """What is wrong with the first line of a JSON-lines file that is no JSON object; None when every line is one."""
    if file.suffix == ".gz":
        return None
    try:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    record_of(line, f"line {number} of {file}")
    except BadData as problem:
        return str(problem)
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, what caused it, and so on to the first."""
    at: BaseException | None = error
    while at is not None:
        yield at
        at = at.__cause__


def _nothing_at(path: str) -> str:
    """Why a path stands for no file, with the nearest names beside it."""
    place = Path(path)
    if glob.has_magic(path):
        return f"no file matches {path} (in {Path.cwd()})"
    if place.exists():
        return f"the folder {path} is empty"
    if not place.parent.is_dir():
        return f"no data set at {place.absolute()}: there is no folder {place.parent}{_hub_hint(path)}"
    beside = sorted(entry.name for entry in place.parent.iterdir())
    return f"no data set at {place.absolute()}; {nearest_of(place.name, beside, f'{place.parent} has')}"


def _no_rows(path: str) -> str:
    return f"the data set {path} has no rows"


def _hub_hint(path: str) -> str:
    """For what looks like `owner/name`."""
    if path.count("/") != 1 or Path(path).suffix in _READERS:
        return ""
    return f"; a data set of the Hub is downloaded first: hf download --repo-type dataset {path} --local-dir data"
