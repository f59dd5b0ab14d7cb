"""What all kinds of data sets have in common: rows in a fixed order, each at a place where it can be read again."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rljob_api.vocabulary.data_url import hub_data
from rljob_worker.data.listing import Listing
from rljob_worker.data.store_retry import DEFAULT_RETRY_POLICY, StoreRetryPolicy
from rljob_worker.errors import BadData

Places = NDArray[np.int64]
"""[rows, width]: where rows are, in the terms of their source."""

BATCH_ROWS = 1024


@dataclass(frozen=True, slots=True)
class ScannedRows:
    """Neighbouring rows of a scan."""

    places: Places
    values: Mapping[str, Sequence[Any]]
    """By column."""
    where: Callable[[int], str]
    """What a message calls the i-th row."""


@dataclass(frozen=True, slots=True)
class DataAccess:
    """How the processes of one attempt read data.

    cache_dir: on storage that all of them share.
    attempt: names this life of the job's processes: all of them see the same listing of an object store.
    patience: with object stores that do not answer.
    """

    cache_dir: Path
    attempt: str = ""
    retry_policy: StoreRetryPolicy = DEFAULT_RETRY_POLICY


class DataSource(Protocol):
    """One opened data set, and the columns of it that a job reads."""

    @property
    def name(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def columns(self) -> Sequence[str]: ...
    @property
    def files(self) -> Listing:
        """As they were when the data set was opened; every row comes from these."""

    def all_columns(self) -> list[str]:
        """Names of the columns that the data set has, read by the job or not."""
        ...

    def scan(self) -> Iterator[ScannedRows]:
        """All rows in order, a batch at a time. Raises BadData naming what is wrong, and a column that is not there."""
        ...

    def read(self, places: Places) -> dict[str, list[Any]]:
        """The columns of some rows, in the order asked for."""
        ...

    def where(self, place: NDArray[np.int64]) -> str:
        """What a message calls the row at a place."""
        ...

    def list_files(self) -> Listing:
        """The files as they are now."""
        ...


def value_of(record: Mapping[str, Any], column: str) -> Any:
    """A column's value; a name with dots reaches into a column of records, `answer.value`. None where there is none."""
    if column in record:
        return record[column]
    value: Any = record
    for name in column.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def top_of(column: str, there: Sequence[str]) -> str:
    """The top-level column that a name is, or reaches into."""
    return column if column in there else column.split(".")[0]


def names_within(record: Mapping[str, Any]) -> Iterator[str]:
    """Names with dots of the values in a row's records: `answer.value`."""
    for name, value in record.items():
        if isinstance(value, Mapping):
            for inner in value:
                yield f"{name}.{inner}"
            yield from (f"{name}.{inner}" for inner in names_within(value))


def json_record(line: bytes, where: str) -> dict[str, Any]:
    """A line of JSON as a row. Raises BadData for anything but an object."""
    try:
        value = json.loads(line)
        if b"\\ud" in line or b"\\uD" in line:  # of a pair of which one half is missing no text can be made
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise BadData(f"{where} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadData(f"{where} is a JSON {type(value).__name__}, not an object with columns")
    return value


def no_text(
    error: UnicodeDecodeError, num_rows: int, look: Callable[[int], object], where: Callable[[int], str]
) -> Exception:
    """Which of some rows is meant by an error about all of them: the first that `look`, alone, does not read."""
    for i in range(num_rows):
        try:
            look(i)
        except UnicodeDecodeError as result:
            return BadData(f"{where(i)} holds text that is not UTF-8: {result.reason}")
    return error


class NoColumn(BadData):
    """A data set lacks a column that the job names, and has others."""

    def __init__(self, path: str, name: str, there: Sequence[str]) -> None:
        is_within = any(other.startswith(f"{top_of(name, there)}.") for other in there)
        wanted = name if is_within else top_of(name, there)
        super().__init__(f"{path} has no column {name!r}; {nearest_of(wanted, there, 'it has')}")
        self.name = name


def nearest_of(wanted: str, there: Sequence[str], has: str) -> str:
    """What is there, and the name among it that was probably meant."""
    near = difflib.get_close_matches(wanted, there, n=1)
    listing = f"{has} {', '.join(there[:20]) or 'nothing'}"
    return f"did you mean {near[0]!r}? {listing}" if near else listing


def stem(path: str) -> str:
    """A file's name without its endings: data/gsm8k.jsonl.gz -> gsm8k; of a data set of the Hub its own name."""
    if (hub := hub_data(path)) is not None and hub.files is None:
        return hub.name.rpartition("/")[2]
    return PurePath(path).name.removesuffix(".gz").rpartition(".")[0] or PurePath(path).name
