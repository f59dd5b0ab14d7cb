"""The first rows of a data set.

On a disk they are read without the library that a run reads them with, which takes seconds; in a store as a run does.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from rljob_api.v1alpha1.data import DatasetSpec
from rljob_api.vocabulary.data_url import scheme_of
from rljob_worker.data.files import DataFiles, data_files, no_rows
from rljob_worker.data.objects.opening import source_of, store_of
from rljob_worker.data.source import DataSource, NoColumn, json_record, names_within, top_of, value_of
from rljob_worker.data.store_retry import StoreRetryPolicy
from rljob_worker.errors import BadData

LOOK_ROWS = 512
"""Rows that are looked at: enough to find what is wrong with every row, little enough to tokenize at once."""

_WHOLE_JSON_BYTES = 64 << 20
"""A file of one JSON list is read whole up to here."""

_Record = Mapping[str, Any]

LOOK_RETRY_SECONDS = 2.0
"""With a store that does not answer: a run has more."""


@dataclass(frozen=True, slots=True)
class FirstRows:
    """What is known of a data set after a glance."""

    path: str
    values: Mapping[str, Sequence[Any]]
    """By column, of the first rows."""
    num_rows: int
    """Rows of the whole data set, or as many as were asked for where there are more."""

    def where(self, i: int) -> str:
        """What a message calls the i-th of the first rows."""
        return f"row {i + 1} of {self.path}"

    @property
    def num_seen(self) -> int:
        return len(next(iter(self.values.values())))

    @property
    def is_all(self) -> bool:
        return self.num_seen == self.num_rows


def first_rows(path: str, columns: Sequence[str], count: int) -> FirstRows:
    """The first rows of the columns; rows are counted up to `count`. Raises BadData as opening the data set would."""
    if scheme_of(path) is not None:
        return first_stored_rows(DatasetSpec(path=path), columns, count)
    files = data_files(path)
    try:
        num_rows, there, records = _READERS[files.kind](files, columns, max(count, LOOK_ROWS + 1))
    except (pa.ArrowException, OSError, ValueError, EOFError) as error:
        raise _unreadable(path, error) from error
    if not records:
        raise BadData(no_rows(path))
    for name in columns:
        if top_of(name, there) not in there:
            raise NoColumn(path, name, there)
        if name not in there and all(value_of(record, name) is None for record in records):
            raise_for_name_within(path, name, records)
    return FirstRows(path, {name: [value_of(record, name) for record in records] for name in columns}, num_rows)


def raise_for_name_within(path: str, name: str, records: Sequence[_Record]) -> None:
    """Raises NoColumn for a name with dots that none of the records has, where they have others."""
    within = dict.fromkeys(inner for record in records for inner in names_within(record))
    if within:
        raise NoColumn(path, name, list(within))


def data_set_columns(path: str) -> list[str]:
    """Names of the columns of a data set. Raises BadData, and what a store or the Hub does."""
    if scheme_of(path) is not None:
        return _opened_source(DatasetSpec(path=path), ()).all_columns()
    files = data_files(path)
    try:
        return _READERS[files.kind](files, (), 1)[1]
    except (pa.ArrowException, OSError, ValueError, EOFError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: str, error: Exception) -> BadData:
    if isinstance(error, BadData):
        return error
    return BadData(f"{path} cannot be read: {type(error).__name__}: {str(error).partition(chr(10))[0]}")


def _parquet(data: DataFiles, columns: Sequence[str], _count: int) -> tuple[int, list[str], list[_Record]]:
    """Rows in all, names of columns, the first rows."""
    opened = [pq.ParquetFile(file) for file in data.files]
    there = opened[0].schema_arrow.names
    tops = sorted({top for name in columns if (top := top_of(name, there)) in there})
    records = (row for file in opened for row in _rows(file.iter_batches(LOOK_ROWS, columns=tops)))
    return sum(file.metadata.num_rows for file in opened), there, list(islice(records, LOOK_ROWS))


def _saved(data: DataFiles, _columns: Sequence[str], count: int) -> tuple[int, list[str], list[_Record]]:
    there: list[str] = []
    records: list[_Record] = []
    num_rows = 0
    for file in data.files:
        with pa.OSFile(str(file)) as source, pa.ipc.open_stream(source) as stream:
            there = there or stream.schema.names
            for batch in stream:
                records += islice(_rows([batch]), LOOK_ROWS - len(records))
                num_rows += batch.num_rows
                if num_rows >= count:
                    return num_rows, there, records
    return num_rows, there, records


def _json(data: DataFiles, _columns: Sequence[str], count: int) -> tuple[int, list[str], list[_Record]]:
    records: list[_Record] = []
    num_rows = 0
    for number, line, file in islice(_json_lines(data.files), count):
        if len(records) < LOOK_ROWS:
            records.append(json_record(line, f"line {number} of {file}"))
        num_rows += 1
    there = list(dict.fromkeys(name for record in records for name in record))
    return num_rows, there, records


_READERS = {"parquet": _parquet, "json": _json, "saved": _saved}


def _rows(batches: Any) -> Iterator[_Record]:
    for batch in batches:
        yield from batch.to_pylist()


def _json_lines(files: Sequence[Path]) -> Iterator[tuple[int, bytes, Path]]:
    """Line numbers, lines that are not blank, and their file; the items of a list as if each were a line."""
    for file in files:
        with _opened(file) as lines:
            if lines.read(1) == b"[" and file.stat().st_size <= _WHOLE_JSON_BYTES:
                lines.seek(0)
                for number, item in enumerate(json.load(lines), start=1):
                    yield number, json.dumps(item).encode(), file
                continue
            lines.seek(0)
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield number, line, file


def _opened(file: Path) -> IO[bytes]:
    return gzip.open(file) if file.suffix == ".gz" else file.open("rb")  # type: ignore[return-value]


def first_stored_rows(spec: DatasetSpec, columns: Sequence[str], count: int) -> FirstRows:
    """As `first_rows`; of Parquet whole row groups are read for it. Raises what opening and reading the data set do."""
    tops = [name.partition(".")[0] for name in columns if "." in name]
    source = _opened_source(spec, list(dict.fromkeys([*columns, *tops])))
    values: dict[str, list[Any]] = {name: [] for name in source.columns}
    num_rows = 0
    for rows in source.scan():
        for name, result in values.items():
            result += rows.values[name][: LOOK_ROWS - len(result)]
        num_rows += len(rows.places)
        if num_rows >= max(count, LOOK_ROWS + 1):
            break
    for name in columns:
        top = name.partition(".")[0]
        if top != name and all(value is None for value in values[name]):
            raise_for_name_within(spec.path, name, [{top: value} for value in values[top]])
    return FirstRows(spec.path, values, num_rows)


def _opened_source(spec: DatasetSpec, columns: Sequence[str]) -> DataSource:
    store = store_of(spec, StoreRetryPolicy(LOOK_RETRY_SECONDS))
    listing = store.list_files()
    return source_of(spec, listing, columns, store.at(listing))
