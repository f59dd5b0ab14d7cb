"""Data sets on disk as memory-mapped tables: a file, a pattern, a folder of files, or what `save_to_disk` wrote.

Nothing is downloaded. Files are converted once into `cache_dir` by the `datasets` library, which locks before it looks:
which tables came out is kept beside, so that only who converts takes that lock. Row numbers in messages count from 1.
"""

from __future__ import annotations

import errno
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

from rljob_api.v1alpha1.data import DatasetSpec
from rljob_worker.data.files import DataFiles, data_files, first_bad_line, no_rows
from rljob_worker.data.find_or_make import Beat, find_or_make
from rljob_worker.data.listing import Listing, listing_to_json
from rljob_worker.data.source import (
    BATCH_ROWS,
    NoColumn,
    Places,
    ScannedRows,
    no_text,
    stem,
    top_of,
    value_of,
)
from rljob_worker.errors import BadData, StorageError

if TYPE_CHECKING:
    from datasets import Dataset

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


@dataclass(frozen=True)
class DiskSource:
    """One opened data set; the place of a row is its number."""

    name: str
    path: str
    files: Listing
    table: Dataset
    columns: tuple[str, ...]
    pictures: Dataset | None = None
    """Columns that the library would decode as pictures, as they are stored: records of bytes and path."""

    def all_columns(self) -> list[str]:
        return list(self.table.column_names)

    def scan(self) -> Iterator[ScannedRows]:
        for start in range(0, len(self.table), BATCH_ROWS):
            yield self._rows(start, min(start + BATCH_ROWS, len(self.table)))

    def read(self, places: Places) -> dict[str, list[Any]]:
        return self._values(places[:, 0].tolist())

    def where(self, place: NDArray[np.int64]) -> str:
        return f"row {place[0] + 1} of {self.path}"

    def list_files(self) -> Listing:
        return data_files(self.path).listing

    def _rows(self, start: int, stop: int) -> ScannedRows:
        def where(i: int) -> str:
            return f"row {start + i + 1} of {self.path}"

        try:
            values = self._values(slice(start, stop))
        except UnicodeDecodeError as error:
            raise no_text(error, stop - start, lambda i: self.table[start + i], where) from error
        return ScannedRows(np.arange(start, stop, dtype=np.int64)[:, None], values, where)

    def _values(self, rows: slice | list[int]) -> dict[str, list[Any]]:
        result: Mapping[str, list[Any]] = self.table[rows]
        if self.pictures is not None:
            result = {**result, **self.pictures[rows].to_pydict()}
        tops = {name: top_of(name, list(result)) for name in self.columns}
        return {name: [value_of({top: value}, name) for value in result[top]] for name, top in tops.items()}


def open_on_disk(spec: DatasetSpec, columns: Sequence[str], cache_dir: Path) -> DiskSource:
    """Open one data set of the job.

    Raises BadData: nothing at the path, an unknown kind of file, an unreadable file, no rows, no such column.
    StorageError: no room in the cache.
    """
    data = data_files(spec.path)
    table = _load(data, columns, cache_dir)
    if not len(table):
        raise BadData(no_rows(spec.path))
    table = table.select_columns(list(_used(spec.path, columns, table.column_names)))
    encoded = [name for name, feature in table.features.items() if _is_picture(feature)]
    pictures = table.select_columns(encoded).with_format("arrow") if encoded else None
    name = spec.name or stem(spec.path)
    return DiskSource(name, spec.path, data.listing, table.remove_columns(encoded), tuple(columns), pictures)


def _is_picture(feature: Any) -> bool:
    """Whether the library reads a column as pictures, or lists of them."""
    return type(feature).__name__ == "Image" or (hasattr(feature, "feature") and _is_picture(feature.feature))


def _used(path: str, columns: Sequence[str], there: Sequence[str]) -> tuple[str, ...]:
    """The top-level columns that hold the job's. Raises NoColumn for one that is not there."""
    tops = [top_of(name, there) for name in columns]
    for name, top in zip(columns, tops, strict=True):
        if top not in there:
            raise NoColumn(path, name, there)
    return tuple(dict.fromkeys(tops))


def _load(data: DataFiles, columns: Sequence[str], cache_dir: Path) -> Dataset:
    import datasets

    datasets.disable_progress_bars()
    logging.getLogger("datasets").setLevel(logging.CRITICAL)  # failures are raised below, with a message for the job
    try:
        if data.kind == "saved":
            return datasets.Dataset.load_from_disk(data.path)
        tables = _tables(data, columns, cache_dir)
        return datasets.concatenate_datasets([datasets.Dataset.from_file(str(table)) for table in tables])
    except BadData:
        raise
    except (datasets.exceptions.DatasetsError, pa.ArrowException, OSError, ValueError, RecursionError) as error:
        raise _unreadable(data, error) from error


def _tables(data: DataFiles, columns: Sequence[str], cache_dir: Path) -> list[Path]:
    """The Arrow files that some files were converted to: found by looking, made by one rank of the job."""
    import datasets

    kept = None if data.kind == "json" else sorted(columns)
    identity = json.dumps([datasets.__version__, kept, listing_to_json(data.listing)])
    place = cache_dir / "tables" / f"{hashlib.sha256(identity.encode()).hexdigest()[:32]}.tables"

    def make(beat: Beat) -> Iterator[bytes]:
        made = _convert(data, columns, cache_dir)
        yield json.dumps([os.path.relpath(file["filename"], cache_dir) for file in made.cache_files]).encode()

    tables = [cache_dir / name for name in json.loads(bytes(find_or_make(place, make)))]
    if all(table.exists() for table in tables):
        return tables
    place.unlink(missing_ok=True)  # somebody tidied the cache
    return [cache_dir / name for name in json.loads(bytes(find_or_make(place, make)))]


def _convert(data: DataFiles, columns: Sequence[str], cache_dir: Path) -> Dataset:
    """JSON whole; of parquet the columns that the job uses, as others may be of a type unknown to the library."""
    import datasets

    if data.kind == "json":
        return datasets.Dataset.from_json([str(file) for file in data.files], cache_dir=str(cache_dir))
    # the library stumbles over a part of no rows
    filled = [str(file) for file in data.files if pq.read_metadata(file).num_rows]
    if not filled:
        raise BadData(no_rows(data.path))
    schema = pq.read_schema(filled[0])
    used = _used(data.path, columns, schema.names)
    features = datasets.Features.from_arrow_schema(pa.schema([schema.field(name) for name in used], schema.metadata))
    return datasets.Dataset.from_parquet(filled, columns=list(used), features=features, cache_dir=str(cache_dir))


def _unreadable(data: DataFiles, error: BaseException) -> Exception:
    """The error as a message for the job: a full disk, the first bad line of a JSON file, or the library's own
    reason."""
    causes = list(_causes(error))
    for cause in causes:
        if isinstance(cause, OSError) and cause.errno in _FULL:
            return StorageError(f"no room to convert {data.path} for reading: {cause}")
    for file in data.files:
        if data.kind == "json" and (problem := first_bad_line(file)):
            return BadData(problem)
    reason = str(causes[-1]).strip().splitlines()
    return BadData(
        f"{data.path} cannot be read: {type(causes[-1]).__name__}: {reason[0] if reason else 'no reason given'}"
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, what caused it, and so on to the first."""
    at: BaseException | None = error
    while at is not None:
        yield at
        at = at.__cause__
