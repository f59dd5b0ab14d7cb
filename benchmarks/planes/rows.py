"""The rows that every data plane moves, and what tells that they have arrived; numpy only, for two environments.

The rows lie in one file, mapped by the writer: so no system's memory is counted for having them. Padded rows are
all of one length; ragged ones between half and one and a half times the mean.
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, reduce
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

NUM_COLUMNS = 9
COLUMNS = [f"column_{i}" for i in range(NUM_COLUMNS)]
SHAPES = {1: (128, 228), 18: (256, 2048), 288: (1024, 8192), 2048: (2048, 29128)}
"""Megabytes -> rows, mean length in float32 values of each of the columns."""
TOLERANCE = 1e-3
"""Of sums in float32, whose order of adding is not the same for one share and for several."""


@dataclass(frozen=True)
class RowCase:
    """Rows of one size and shape, and how many processes write and read them."""

    megabytes: int
    is_padded: bool
    num_writers: int
    num_readers: int

    @property
    def num_rows(self) -> int:
        return SHAPES[self.megabytes][0]

    @property
    def mean(self) -> int:
        return SHAPES[self.megabytes][1]

    @property
    def num_bytes(self) -> int:
        return int(self.lengths().sum()) * 4 * NUM_COLUMNS

    def lengths(self) -> NDArray[np.int64]:
        """Values of every row in every column, [rows]."""
        if self.is_padded:
            return np.full(self.num_rows, self.mean, np.int64)
        low, high = self.mean // 2, self.mean + self.mean // 2
        return np.random.default_rng(self.megabytes).integers(low, high, self.num_rows)

    def __str__(self) -> str:
        return f"{self.num_bytes / 1e6:,.1f} MB, {'padded' if self.is_padded else 'ragged'}"

    def to_json(self) -> str:
        return json.dumps([self.megabytes, self.is_padded, self.num_writers, self.num_readers])

    @staticmethod
    def from_json(text: str) -> RowCase:
        return RowCase(*json.loads(text))


@dataclass(frozen=True, eq=False)
class RowsPart:
    """Rows that one process writes or has read, ascending: every column's values lie one row after the other."""

    row_ids: NDArray[np.int64]
    lengths: NDArray[np.int64]
    columns: list[NDArray[np.float32]]

    @property
    def offsets(self) -> NDArray[np.int64]:
        return np.concatenate([[0], np.cumsum(self.lengths)])


class Role(Protocol):
    """One process that writes or reads, in one system."""

    def put(self, step: int) -> None: ...

    def get(self, step: int) -> None: ...

    def copy_out(self) -> None:
        """What the last `get` brought, into arrays of its own: where `get` leaves it in shared memory."""
        ...

    def part(self) -> RowsPart:
        """What the last `get` brought."""
        ...

    def release(self, step: int) -> None:
        """Give back what was got and put."""
        ...


def make(case: RowCase, path: Path) -> None:
    """Write all rows, column after column."""
    total = int(case.lengths().sum())
    values = np.lib.format.open_memmap(path, "w+", np.float32, (NUM_COLUMNS, total))
    generator = np.random.default_rng(0)
    for column in values:
        generator.random(out=column, dtype=np.float32)


def part_of(case: RowCase, path: Path, writer: int) -> RowsPart:
    """The rows of one writer: as many as every other's."""
    values = np.load(path, mmap_mode="c")  # private, so that libraries take it for writable
    lengths = case.lengths()
    num_rows = case.num_rows // case.num_writers
    first, stop = writer * num_rows, (writer + 1) * num_rows
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    columns = [column[offsets[first] : offsets[stop]] for column in values]
    return RowsPart(np.arange(first, stop), lengths[first:stop], columns)


def act(role: Role, action: str, step: int) -> dict[str, Any]:
    """One action of a role; when it began and ended on a clock that all processes of the machine share."""
    calls: dict[str, Callable[[], Any]] = {
        "put": lambda: role.put(step),
        "get": lambda: role.get(step),
        "copy": lambda: role.copy_out(),
        "read": lambda: sums(role.part()),
        "verify": lambda: prints_of(role.part()),
        "release": lambda: role.release(step),
    }
    begin = time.monotonic()
    result = calls[action]()
    return {"begin": begin, "end": time.monotonic(), "found": result}


def sums(part: RowsPart) -> list[float]:
    """Sum of every column, which reads every value once."""
    return [float(column.sum()) for column in part.columns]


def prints_of(part: RowsPart) -> dict[str, Any]:
    """Row ids, and a checksum of every column's bytes in the order in which they lie."""
    return {"row_ids": part.row_ids.tolist(), "crc": [zlib.crc32(column) for column in part.columns]}


class ExpectedRows:
    """What all shares together must come to."""

    def __init__(self, case: RowCase, path: Path) -> None:
        self._whole = part_of(RowCase(case.megabytes, case.is_padded, 1, 1), path, 0)
        self._sums = sums(self._whole)

    def check_sums(self, result: list[list[float]]) -> None:
        """The values are those that were made."""
        got = np.sum(result, axis=0)
        assert np.allclose(self._sums, got, rtol=TOLERANCE), f"sums of columns are {got}, not {self._sums}"

    def check_prints(self, result: list[dict[str, Any]]) -> None:
        """Every row came once, ascending, and every byte lies in its place."""
        ids = [np.array(share["row_ids"]) for share in result]
        assert all((np.diff(item) > 0).all() for item in ids), "rows are not in order"
        assert (np.sort(np.concatenate(ids)) == self._whole.row_ids).all(), "rows are missing, or came twice"
        for share, row_ids in zip(result, ids, strict=True):
            assert share["crc"] == self._prints(tuple(row_ids.tolist())), "values are not what was written"

    @cache  # noqa: B019
    def _prints(self, row_ids: tuple[int, ...]) -> list[int]:
        offsets = self._whole.offsets
        runs = [slice(offsets[row], offsets[row + 1]) for row in row_ids]
        return [reduce(lambda crc, run, c=column: zlib.crc32(c[run], crc), runs, 0) for column in self._whole.columns]
