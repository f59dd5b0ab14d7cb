"""JSON lines in an object store: the place of a row is its file and its bytes, and reading it is a request for them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rljob_worker.data.listing import DataFile, Listing
from rljob_worker.data.objects.kinds import row_objects
from rljob_worker.data.objects.store import RangeStore, Span, coalesced_spans
from rljob_worker.data.source import BATCH_ROWS, NoColumn, Places, ScannedRows, json_record, top_of, value_of
from rljob_worker.errors import BadData

SCAN_BYTES = 4 << 20
"""A request of the scan."""

MAX_LINE_BYTES = 64 << 20

_Line = tuple[int, int, int, bytes]
"""File, first byte, number of the line from 1, and its bytes."""


@dataclass(frozen=True)
class LineSource:
    """Places are [file, first byte, bytes]."""

    name: str
    path: str
    files: Listing
    columns: tuple[str, ...]
    store: RangeStore

    def all_columns(self) -> list[str]:
        for index, _, number, line in self._lines():
            return list(json_record(line, f"line {number} of {self.files[index].path}"))
        return []

    def scan(self) -> Iterator[ScannedRows]:
        batch: list[_Line] = []
        is_first = True
        for line in self._lines():
            batch.append(line)
            if len(batch) == BATCH_ROWS:
                yield self._rows(batch, is_first)
                batch, is_first = [], False
        if batch:
            yield self._rows(batch, is_first)
        elif is_first:
            raise BadData(f"the data set {self.path} has no rows")

    def read(self, places: Places) -> dict[str, list[Any]]:
        spans = [Span(self.files[file], start, start + size) for file, start, size in places.tolist()]
        requests, home = coalesced_spans(spans)
        blocks = self.store.read(requests)
        lines = (
            blocks[at][span.start - requests[at].start : span.stop - requests[at].start]
            for at, span in zip(home, spans, strict=True)
        )
        return self._values([json.loads(line) for line in lines])

    def where(self, place: NDArray[np.int64]) -> str:
        return f"the line at byte {place[1]} of {self.files[place[0]].path}"

    def list_files(self) -> Listing:
        return row_objects(self.path, self.store.list_files())[1]

    def _lines(self) -> Iterator[_Line]:
        """All lines that are not blank."""
        for index, file in enumerate(self.files):
            at = 0
            for number, line in enumerate(self._split(file), start=1):
                if line.strip():
                    yield index, at, number, line
                at += len(line) + 1

    def _split(self, file: DataFile) -> Iterator[bytes]:
        """The lines of a file; in memory is the block of a request, and no second one as a list of its lines."""
        rest, number = b"", 1
        for start in range(0, file.size, SCAN_BYTES):
            (block,) = self.store.read([Span(file, start, min(start + SCAN_BYTES, file.size))])
            begin = 0
            while (end := block.find(b"\n", begin)) >= 0:
                yield rest + block[begin:end]
                rest, begin, number = b"", end + 1, number + 1
            rest += block[begin:]
            if len(rest) > MAX_LINE_BYTES:
                raise BadData(f"line {number} of {file.path} is longer than {MAX_LINE_BYTES >> 20} MiB")
        yield rest

    def _rows(self, lines: Sequence[_Line], is_first: bool) -> ScannedRows:
        def where(i: int) -> str:
            return f"line {lines[i][2]} of {self.files[lines[i][0]].path}"

        records = [json_record(line[3], where(i)) for i, line in enumerate(lines)]
        if is_first:
            self._check_columns(list(records[0]))
        places = np.array([(index, at, len(line)) for index, at, _, line in lines], np.int64)
        return ScannedRows(places, self._values(records), where)

    def _check_columns(self, there: Sequence[str]) -> None:
        for name in self.columns:
            if top_of(name, there) not in there:
                raise NoColumn(self.path, name, there)

    def _values(self, records: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
        return {name: [value_of(record, name) for record in records] for name in self.columns}
