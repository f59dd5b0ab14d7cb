"""Parquet in an object store: the place of a row is its file, its row group and its number there.

A row group is the least that can be read: its pages are compressed together. One that was read is kept for a while, so
that small data sets are read once per process, and neighbours in one request.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rljob_worker.data.listing import DataFile, Listing
from rljob_worker.data.objects.kinds import row_objects
from rljob_worker.data.objects.store import RangeStore, Span
from rljob_worker.data.source import BATCH_ROWS, NoColumn, Places, ScannedRows, no_text, top_of, value_of
from rljob_worker.errors import BadData, RLJobError
from rljob_worker.storage.object_path import RangedFile

CACHE_BYTES = 64 << 20
"""Row groups and footers that a process keeps, of each data set."""

MAX_GROUPS_AT_ONCE = 8
"""Row groups that are read together: as many are in memory besides those that are kept."""

LARGE_GROUP_BYTES = 32 << 20
"""Row groups above this, of the columns that are read, are warned of: every row of a shuffled step reads one."""

_log = logging.getLogger("rljob.data")


@dataclass(frozen=True)
class RowGroupSource:
    """Places are [file, row group, row of the group]."""

    name: str
    path: str
    files: Listing
    columns: tuple[str, ...]
    store: RangeStore
    cache: ByteCache = field(default_factory=lambda: ByteCache(CACHE_BYTES))

    def all_columns(self) -> list[str]:
        return list(self._footer(0).schema.to_arrow_schema().names)

    def scan(self) -> Iterator[ScannedRows]:
        num_rows, largest = 0, 0
        for index, file in enumerate(self.files):
            first = 0
            for group in range(self._footer(index).num_row_groups):
                table = self._group(index, group)
                largest = max(largest, table.nbytes)
                for start in range(0, len(table), BATCH_ROWS):
                    yield self._rows(file, (index, group, start), first + start, table.slice(start, BATCH_ROWS))
                first += len(table)
            num_rows += first
        if not num_rows:
            raise BadData(f"the data set {self.path} has no rows")
        if largest > LARGE_GROUP_BYTES:
            _log.warning(
                "%s: row groups have up to %d MiB of the columns that are read, and every row that a step takes reads "
                "one; write the files with row groups of a thousand rows or so (pyarrow: row_group_size=1000)",
                self.path,
                largest >> 20,
            )

    def read(self, places: Places) -> dict[str, list[Any]]:
        values: dict[str, list[Any]] = {name: [None] * len(places) for name in self.columns}
        groups, home = np.unique(places[:, :2], axis=0, return_inverse=True)

        def rows_of_group(number: int) -> tuple[NDArray[np.int64], pa.Table]:
            chosen = np.flatnonzero(home.reshape(-1) == number)
            return chosen, self._group(*groups[number].tolist()).take(pa.array(places[chosen, 2]))

        # the rows of a shuffled step are in as many groups, and one request after the other would wait for each
        with ThreadPoolExecutor(max(1, min(MAX_GROUPS_AT_ONCE, len(groups)))) as pool:
            for chosen, table in pool.map(rows_of_group, range(len(groups))):
                for name, result in self._values(table).items():
                    for at, value in zip(chosen, result, strict=True):
                        values[name][at] = value
        return values

    def where(self, place: NDArray[np.int64]) -> str:
        return f"row {place[2] + 1} of row group {place[1] + 1} of {self.files[place[0]].path}"

    def list_files(self) -> Listing:
        return row_objects(self.path, self.store.list_files())[1]

    def _rows(self, file: DataFile, place: tuple[int, int, int], first: int, table: pa.Table) -> ScannedRows:
        """first: number of the first row in its file."""

        def where(i: int) -> str:
            return f"row {first + i + 1} of {file.path}"

        index, group, start = place
        places = np.array([(index, group, start + i) for i in range(len(table))], np.int64).reshape(-1, 3)
        try:
            return ScannedRows(places, self._values(table), where)
        except UnicodeDecodeError as error:
            raise no_text(error, len(table), lambda i: self._values(table.slice(i, 1)), where) from error

    def _group(self, index: int, group: int) -> pa.Table:
        key = ("group", index, group)
        return self.cache.find_or_make(key, lambda: self._read_group(index, group), lambda table: table.nbytes)

    def _footer(self, index: int) -> pq.FileMetaData:
        key = ("footer", index)
        return self.cache.find_or_make(key, lambda: self._open(index).metadata, lambda result: result.serialized_size)

    def _read_group(self, index: int, group: int) -> pa.Table:
        file = self._open(index, self._footer(index))
        there = file.schema_arrow.names
        tops = list(dict.fromkeys(top_of(name, there) for name in self.columns))
        for name in self.columns:
            if top_of(name, there) not in there:
                raise NoColumn(self.files[index].path, name, there)
        with _readable(self.files[index]):
            return file.read_row_group(group, columns=tops, use_threads=False)

    def _open(self, index: int, footer: pq.FileMetaData | None = None) -> pq.ParquetFile:
        file = self.files[index]

        def read_range(start: int, stop: int) -> bytes:
            (result,) = self.store.read([Span(file, start, stop)])
            return result

        opened = pa.PythonFile(RangedFile(file.size, read_range), mode="r")
        with _readable(file):
            return pq.ParquetFile(opened, metadata=footer, pre_buffer=True)

    def _values(self, table: pa.Table) -> dict[str, Sequence[Any]]:
        tops = {name: top_of(name, table.column_names) for name in self.columns}
        columns = {top: table.column(top).to_pylist() for top in set(tops.values())}
        return {name: [value_of({top: value}, name) for value in columns[top]] for name, top in tops.items()}


@contextmanager
def _readable(file: DataFile) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, RLJobError) or getattr(error, "errno", None) is not None:  # ours, or the system's
            raise
        raise BadData(f"{file.path} cannot be read as Parquet: {str(error).splitlines()[0]}") from error


class ByteCache:
    """Threads may share it. What is larger than all of it is handed out and not kept."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._kept: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._num_bytes = 0
        self._lock = threading.Lock()

    def find_or_make(self, key: Hashable, make: Callable[[], Any], size: Callable[[Any], int]) -> Any:
        """What is kept under the key, or is made now; two threads that miss it both make it."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key][0]
        made = make()
        with self._lock:
            self._keep(key, made, size(made))
        return made

    def _keep(self, key: Hashable, made: Any, num_bytes: int) -> None:
        self._num_bytes += num_bytes - self._kept.pop(key, (None, 0))[1]
        self._kept[key] = (made, num_bytes)
        while self._num_bytes > self._max_bytes:
            self._num_bytes -= self._kept.popitem(last=False)[1][1]
