"""The one look at every prompt before a run: which rows are short enough, and what the data is.

A survey is kept in the cache under a name made of everything it depends on, so that one rank of the job makes it, and
every later attempt finds it. It is small: the numbers of the kept rows, not their tokens.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rljob_worker.data.find_or_make import Beat, find_or_make
from rljob_worker.data.prompts import PromptEncoder, TokenIds
from rljob_worker.data.sources import Source, stamps
from rljob_worker.errors import BadData

VERSION = 2
"""Part of every name in the cache: surveys of another form are not read."""

BATCH_ROWS = 1024

_log = logging.getLogger("rljob.data")

_Row = tuple[int, TokenIds, list[str]]
"""A row's number, its prompt's token ids, its columns as texts."""


@dataclass(frozen=True, slots=True)
class Survey:
    """What is known of one source."""

    kept: NDArray[np.int64]
    """Rows whose prompt is short enough, ascending."""
    num_filtered: int
    """Rows that were left out."""
    digest: str
    """Of the kept rows' token ids and columns."""

    def to_bytes(self) -> bytes:
        into = io.BytesIO()
        np.savez(into, kept=self.kept, num_filtered=self.num_filtered, digest=self.digest)
        return into.getvalue()

    @staticmethod
    def from_bytes(data: bytes) -> Survey:
        with np.load(io.BytesIO(data), allow_pickle=False) as saved:
            return Survey(saved["kept"], int(saved["num_filtered"]), str(saved["digest"]))


def survey(
    source: Source,
    encoder: PromptEncoder,
    *,
    prompt: str,
    columns: Sequence[str],
    max_tokens: int,
    max_rows: int | None,
    cache_dir: Path,
) -> Survey:
    """Look at the prompts of a source, or read what was seen. Raises BadData naming a bad row, StorageError."""
    identity = [VERSION, encoder.identity, prompt, list(columns), max_tokens, max_rows, stamps(source.files)]
    name = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]
    place = cache_dir / "surveys" / f"{name}.survey"

    def make(beat: Beat) -> bytes:
        found = _look(_rows(source, encoder, prompt, columns, beat), max_tokens, max_rows)
        if found.num_filtered:
            _log.warning(
                "%s: left out %d prompts longer than maxPromptTokens: %d, kept %d",
                source.path,
                found.num_filtered,
                max_tokens,
                len(found.kept),
            )
        return found.to_bytes()

    return Survey.from_bytes(find_or_make(place, make))


def text_of(value: Any, column: str, where: str) -> str:
    """A column's value as the text that travels: a text as it is, anything else as JSON. Raises BadData for none."""
    if isinstance(value, str):
        return value
    if value is None:
        raise BadData(f"{where}: the column {column!r} has no value")
    return json.dumps(value, ensure_ascii=False, default=str)


def _look(rows: Iterator[_Row], max_tokens: int, max_rows: int | None) -> Survey:
    digest, kept, seen = hashlib.sha256(), list[int](), 0
    for row, tokens, texts in rows:
        if len(kept) == max_rows:
            break
        seen += 1
        if len(tokens) <= max_tokens:
            kept.append(row)
            digest.update(tokens.tobytes() + json.dumps(texts).encode())
    return Survey(np.asarray(kept, np.int64), seen - len(kept), digest.hexdigest())


def _rows(source: Source, encoder: PromptEncoder, prompt: str, columns: Sequence[str], beat: Beat) -> Iterator[_Row]:
    """Every row; a sign of life before each batch of them."""

    for start in range(0, len(source), BATCH_ROWS):
        beat()

        def where(i: int, start: int = start) -> str:
            return f"row {start + i} of {source.path}"

        values = source.read(slice(start, start + BATCH_ROWS), [prompt, *columns])
        ids, _ = encoder.encode(values[prompt], where)
        for i, tokens in enumerate(ids):
            texts = [text_of(values[name][i], name, where(i)) for name in columns]
            yield start + i, tokens, texts
