"""The one look at every prompt before a run: which rows are short enough, and what the data is.

A survey is kept in the cache under a name made of everything it depends on, so that one rank of the job makes it, and
every later attempt finds it. It holds the places of the kept rows, not their tokens:

    places of all kept rows, int64 [kept, width] | a note, JSON | length of the note, 8 bytes
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rljob_worker.data.find_or_make import Beat, find_or_make
from rljob_worker.data.listing import listing_to_json
from rljob_worker.data.picture_files import ShownFiles
from rljob_worker.data.prompts import PromptEncoder
from rljob_worker.data.source import DataSource, Places, ScannedRows
from rljob_worker.errors import BadData
from rljob_worker.vision.pictures import PictureList, prompt_digest

VERSION = 3
"""Part of every name in the cache: surveys of another form are not read."""

PICTURE_ROWS = 64
"""Rows whose pictures are in memory at once."""

_LENGTH_BYTES = 8

_log = logging.getLogger("rljob.data")


@dataclass(frozen=True, slots=True)
class Survey:
    """What is known of one source."""

    places: Places
    """Places of the rows whose prompt is short enough, in their order; mapped from the cache."""
    num_filtered: int
    """Rows that were left out."""
    digest: str
    """Digest of the kept rows' token ids and columns."""

    @staticmethod
    def from_bytes(data: memoryview) -> Survey:
        end = len(data) - _LENGTH_BYTES
        start = end - int.from_bytes(data[end:], "little")
        note = json.loads(bytes(data[start:end]))
        places = np.frombuffer(data, "<i8", count=start // 8).reshape(-1, note["width"])
        return Survey(places, note["num_filtered"], note["digest"])


def survey(
    source: DataSource,
    encoder: PromptEncoder,
    *,
    prompt: str,
    columns: Sequence[str],
    max_tokens: int,
    max_rows: int | None,
    cache_dir: Path,
    pictures: ShownFiles | None = None,
) -> Survey:
    """Look at the prompts of a source, or read what was seen. Raises BadData naming a bad row, StorageError.

    pictures: where those of its prompts are; their headers are read, and their bytes are in the digest.
    """
    identity = [VERSION, encoder.identity, prompt, list(columns), max_tokens, max_rows, listing_to_json(source.files)]
    identity += [] if pictures is None else list(pictures.columns)
    name = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]
    place = cache_dir / "surveys" / f"{name}.survey"

    def make(beat: Beat) -> Iterator[bytes]:
        look = _Look(source.path, encoder, prompt, columns, max_tokens, max_rows, pictures)
        for rows in source.scan():
            beat()
            yield look.at(rows).tobytes()
            if look.is_full:
                break
        yield look.note()

    return Survey.from_bytes(find_or_make(place, make))


def column_text(value: Any, column: str, where: str) -> str:
    """A column's value as the text that travels: a text as it is, anything else as JSON. Raises BadData for none."""
    if isinstance(value, str):
        return value
    if value is None:
        raise BadData(f"{where}: the column {column!r} has no value")
    return json.dumps(value, ensure_ascii=False, default=str)


class _Look:
    """A survey in the making; its memory is that of one batch of rows."""

    def __init__(
        self,
        path: str,
        encoder: PromptEncoder,
        prompt: str,
        columns: Sequence[str],
        max_tokens: int,
        max_rows: int | None,
        pictures: ShownFiles | None,
    ) -> None:
        self._pictures = pictures
        self._path, self._encoder, self._prompt, self._columns = path, encoder, prompt, columns
        self._max_tokens, self._max_rows = max_tokens, max_rows
        self._digest, self._width = hashlib.sha256(), 1
        self._num_kept = self._num_seen = 0

    @property
    def is_full(self) -> bool:
        return self._num_kept == self._max_rows

    def at(self, rows: ScannedRows) -> Places:
        """The places of the rows to keep."""
        num_rows = len(rows.places)
        size = num_rows if self._pictures is None else PICTURE_ROWS
        kept = [i for start in range(0, num_rows, max(size, 1)) for i in self._kept(rows, start, start + size)]
        self._width = rows.places.shape[1]
        return rows.places[kept].astype("<i8")

    def _kept(self, rows: ScannedRows, start: int, stop: int) -> Iterator[int]:
        """Those of some rows whose prompt is short enough, which are counted on the way."""

        def where(i: int) -> str:
            return rows.where(start + i)

        files = self._pictures
        pictures = None
        if files is not None:
            pictures = files.read({name: rows.values[name][start:stop] for name in files.columns}, where)
        ids, _, shown = self._encoder.encode(rows.values[self._prompt][start:stop], where, pictures)
        for i, tokens in enumerate(ids):
            if self.is_full:
                return
            texts = [column_text(rows.values[name][start + i], name, where(i)) for name in self._columns]
            self._num_seen += 1
            if len(tokens) <= self._max_tokens:
                self._num_kept += 1
                self._digest.update(tokens.tobytes() + json.dumps(texts).encode())
                if pictures is not None:
                    self._digest.update(prompt_digest(PictureList.pack(shown[i])))
                yield start + i

    def note(self) -> bytes:
        """The end of the survey."""
        num_filtered = self._num_seen - self._num_kept
        if num_filtered:
            _log.warning(
                "%s: left out %d prompts longer than maxPromptTokens: %d, kept %d",
                self._path,
                num_filtered,
                self._max_tokens,
                self._num_kept,
            )
        note = {"width": self._width, "num_filtered": num_filtered, "digest": self._digest.hexdigest()}
        words = json.dumps(note).encode()
        return words + len(words).to_bytes(_LENGTH_BYTES, "little")
