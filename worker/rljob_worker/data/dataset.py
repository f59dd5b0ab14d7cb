"""The prompts of a job by ordinal: the only thing a Rollout stage asks of the data.

    dataset = PromptDataset(spec.data, sources=spec.data.train, columns=("answer",), tokenizer=tokenizer,
                            access=DataAccess(run_dir / "cache"), seed=spec.seed)
    prompts = dataset.fetch(np.arange(first, first + n))         # any ordinals, on any rank

Ordinals go on over epochs without end (see `order.py`, and `mixture.py` where sources have weights); there is no cursor
here, and so none to save. What is in memory is the rows that were asked for: neither the rows of the data set nor their
places are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rljob_api.catalogue.columns import IMAGES
from rljob_api.v1alpha1.data import DatasetSpec, DataSpec
from rljob_api.vocabulary.data_url import scheme_of
from rljob_worker.batch import Column
from rljob_worker.data.disk_source import open_on_disk
from rljob_worker.data.listing import DataIdentity, Listing, changes, named_changes
from rljob_worker.data.mixture import Mixture
from rljob_worker.data.objects.opening import open_objects
from rljob_worker.data.order import Order
from rljob_worker.data.picture_files import ShownFiles
from rljob_worker.data.prompts import Messages, PromptEncoder, TokenIds
from rljob_worker.data.read_ahead import ReadAhead
from rljob_worker.data.source import DataAccess, DataSource
from rljob_worker.data.survey import Survey, column_text, survey
from rljob_worker.errors import BadData
from rljob_worker.vision.pictures import BadPicture, PictureList
from rljob_worker.vision.processing import PictureProcessor


@dataclass(frozen=True, slots=True)
class PromptPictures:
    """Where prompts have their pictures and videos, and what a model sees of them."""

    column: str | None
    """The column of pictures; None: prompts have none."""
    processor: PictureProcessor
    allow_http: bool = False
    videos_column: str | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(name for name in (self.column, self.videos_column) if name is not None)


@dataclass(frozen=True, slots=True)
class _Row:
    where: str
    """What a message calls the row."""
    values: dict[str, Any]
    pictures: tuple[bytes, ...] = ()
    """Encoded, and videos behind them."""


@dataclass(frozen=True, slots=True)
class Prompts:
    """Some prompts, in the order they were asked for."""

    prompt_ids: list[TokenIds]
    """[prompts] of int64 [tokens]."""
    texts: list[str]
    """What was tokenized: the text itself, or the messages as the chat template writes them."""
    columns: dict[str, Column]
    """The data columns that rewards need, utf8; and, of a model that sees, `images`: packed pictures and
    videos in the order of their places, binary."""
    source: Column
    """Name of each prompt's data set, utf8."""
    messages: list[Messages] = field(default_factory=list)
    """[prompts] as chat messages, where the data set is asked for them."""

    def take(self, places: NDArray[np.int64]) -> Prompts:
        """Some of them."""
        return Prompts(
            [self.prompt_ids[place] for place in places],
            [self.texts[place] for place in places if self.texts],
            {name: column.take(places) for name, column in self.columns.items()},
            self.source.take(places),
            [self.messages[place] for place in places if self.messages],
        )

    @staticmethod
    def concat(parts: Sequence[Prompts]) -> Prompts:
        """Those of several, at least one, behind each other."""
        names = parts[0].columns
        return Prompts(
            [ids for part in parts for ids in part.prompt_ids],
            [text for part in parts for text in part.texts],
            {name: Column.concat([part.columns[name] for part in parts]) for name in names},
            Column.concat([part.source for part in parts]),
            [messages for part in parts for messages in part.messages],
        )


class PromptDataset:
    """Prompts of several sources, as one list without those that are too long.

    seed: of the order, which also needs `data.shuffle`; None reads in order.
    max_rows: most prompts of each source, from its start.
    template_arguments: for the tokenizer's chat template, see `prompts`.
    pictures: of a model that sees. Every picture is decoded before its prompt is given, ahead by threads.
    has_messages: whether prompts come as chat messages, too.
    Raises BadData (exit 65) for what is wrong with the data, naming file, row and column; InvalidJob for chat messages
    without a chat template, or credentials of an object store; StorageError for the cache; DeadlineExceeded.
    """

    def __init__(
        self,
        data: DataSpec,
        *,
        sources: Sequence[DatasetSpec],
        columns: Sequence[str],
        tokenizer: Any,
        access: DataAccess,
        seed: int | None = None,
        max_rows: int | None = None,
        template_arguments: Mapping[str, Any] | None = None,
        pictures: PromptPictures | None = None,
        has_messages: bool = False,
    ) -> None:
        assert sources, "a data set needs sources"
        self._prompt, self._pictures = data.prompt_column, pictures
        self._columns, self._has_messages = tuple(columns), has_messages
        self._encoder = PromptEncoder(
            tokenizer,
            apply_chat_template=data.apply_chat_template,
            system_prompt=data.system_prompt,
            template_arguments=template_arguments,
            pictures=None if pictures is None else pictures.processor,
        )
        needed = [self._prompt, *self._columns] + ([] if pictures is None else [*pictures.columns])

        def opened(spec: DatasetSpec) -> DataSource:
            if scheme_of(spec.path) is None:
                return open_on_disk(spec, needed, access.cache_dir)
            return open_objects(spec, needed, access)

        self._sources = [opened(spec) for spec in sources]
        self._files = [
            ShownFiles.of(spec.path, pictures.column, pictures.videos_column, pictures.allow_http, access.retry_policy)
            for spec in sources
            if pictures is not None
        ]
        self._max_tokens = data.max_prompt_tokens
        self._surveys = [self._survey(i, max_rows, access.cache_dir) for i in range(len(self._sources))]
        # rows of source i have the numbers [starts[i], starts[i + 1]) of the whole list
        self._starts = np.cumsum([0, *(len(result.places) for result in self._surveys)])
        weights = [spec.weight for spec in sources if spec.weight is not None]
        self._order = self._order_of(weights, seed if data.shuffle else None, data.max_prompt_tokens)
        self._ahead = ReadAhead(self._rows)

    def _order_of(self, weights: Sequence[float], seed: int | None, max_tokens: int) -> Order | Mixture:
        """The order of the whole list, or of a mixture. Raises BadData where there is nothing to put in order."""
        num_rows = [len(result.places) for result in self._surveys]
        paths = [source.path for source in self._sources]
        if not weights:
            if not any(num_rows):
                raise BadData(_all_too_long(", ".join(paths), max_tokens))
            return Order(len(self), seed)
        for path, weight, count in zip(paths, weights, num_rows, strict=True):
            if weight and not count:
                raise BadData(_all_too_long(path, max_tokens))
        return Mixture(weights, num_rows, seed)

    def __len__(self) -> int:
        """Prompts of all sources; in an epoch, where none has a weight."""
        return int(self._starts[-1])

    @property
    def num_filtered(self) -> int:
        """Prompts left out for being longer than `maxPromptTokens`."""
        return sum(result.num_filtered for result in self._surveys)

    @property
    def fingerprint(self) -> str:
        """Equal only for equal prompts, columns, source names and shares in equal order: what a resumed run compares.

        It follows the content, not the files: a copy of the data elsewhere, or in another format, has the same.
        """
        parts = [
            (source.name, result.digest, len(result.places))
            for source, result in zip(self._sources, self._surveys, strict=True)
        ]
        shares = (self._order.places,) if isinstance(self._order, Mixture) else ()
        seen = () if self._pictures is None else self._pictures.columns
        return hashlib.sha256(repr((self._columns, parts, *shares, *seen)).encode()).hexdigest()

    @property
    def files(self) -> Listing:
        """The files of all sources, as they were when the data set was opened."""
        return tuple(file for source in self._sources for file in source.files)

    @property
    def identity(self) -> DataIdentity:
        """What a checkpoint says of the data."""
        return DataIdentity(self.fingerprint, self.files)

    def fetch(self, ordinals: ArrayLike) -> Prompts:
        """The prompts of some ordinals, of one epoch or several: [n].

        Raises BadData when a file has changed since the data set was opened.
        """
        ordinals = np.asarray(ordinals, np.int64).reshape(-1)
        return self._prompts(self._ahead.take(ordinals), self._sources_of(ordinals))

    def read_ahead(self, ordinals: ArrayLike) -> None:
        """Begin to read what will be fetched next. What goes wrong is raised by that fetch."""
        self._ahead.begin(np.asarray(ordinals, np.int64).reshape(-1))

    def _rows(self, ordinals: NDArray[np.int64]) -> list[_Row]:
        self._check_files(ordinals)
        rows = self._order.index_of(ordinals)
        home = self._home(rows)
        values = [_Row("", {})] * len(rows)
        for index in np.unique(home):
            chosen = np.flatnonzero(home == index)
            for at, value in zip(chosen, self._read(int(index), rows[chosen]), strict=True):
                values[at] = value
        return values

    def _read(self, index: int, rows: NDArray[np.int64]) -> list[_Row]:
        """One source's values of some rows of the whole list."""
        source = self._sources[index]
        places = self._surveys[index].places[rows - self._starts[index]]
        table = source.read(places)
        where = [source.where(place) for place in places]
        pictures = self._read_pictures(index, table, where)
        return [
            _Row(where[i], {name: values[i] for name, values in table.items()}, pictures[i]) for i in range(len(where))
        ]

    def _read_pictures(
        self, index: int, table: Mapping[str, Sequence[Any]], where: Sequence[str]
    ) -> list[tuple[bytes, ...]]:
        """The pictures of one source's rows, each decoded once to see that it can be. Raises BadData naming a row."""
        if self._pictures is None:
            return [()] * len(where)
        pictures = self._files[index].read(table, where.__getitem__)
        self._pictures.processor.read_ahead([encoded for row in pictures for encoded in row])
        for i, row in enumerate(pictures):
            for encoded in row:
                try:
                    self._pictures.processor.pixels(encoded)
                except BadPicture as error:
                    raise BadData(f"{where[i]}: {error}") from error
        return [tuple(row) for row in pictures]

    def _home(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Which source each row of the whole list is in."""
        return np.searchsorted(self._starts, rows, side="right") - 1

    def _sources_of(self, ordinals: NDArray[np.int64]) -> list[str]:
        return [self._sources[index].name for index in self._home(self._order.index_of(ordinals))]

    def _check_files(self, ordinals: NDArray[np.int64]) -> None:
        """The reader of the first row of an epoch, except the very first, checks whether the files are still the same.

        One rank of any number does, whatever the order of the rows. In a mixture, whose sources are used up at times of
        their own, the reader of the first after as many rows as there are.
        """
        if not ((ordinals > 0) & (ordinals % len(self) == 0)).any():
            return
        for source in self._sources:
            if result := changes(source.files, source.list_files()):
                raise BadData(_changed(source.path, result))

    def _prompts(self, rows: list[_Row], sources: list[str]) -> Prompts:
        pictures = None if self._pictures is None else [row.pictures for row in rows]
        prompts = [row.values[self._prompt] for row in rows]
        ids, texts, shown = self._encoder.encode(prompts, lambda i: rows[i].where, pictures)
        columns = {
            name: Column.strings(column_text(row.values[name], name, row.where) for row in rows)
            for name in self._columns
        }
        if pictures is not None:
            self._check_lengths(ids, rows)
            columns[IMAGES] = Column.binary([PictureList.pack(row) for row in shown])
        messages = []
        if self._has_messages:
            messages = [self._encoder.messages(row.values[self._prompt]) for row in rows]
        return Prompts(ids, texts, columns, Column.strings(sources), messages)

    def _check_lengths(self, ids: Sequence[TokenIds], rows: Sequence[_Row]) -> None:
        """Raises BadData for a prompt whose picture was replaced by a larger one since the data was looked at."""
        for tokens, row in zip(ids, rows, strict=True):
            if len(tokens) > self._max_tokens:
                raise BadData(
                    f"{row.where} has {len(tokens)} tokens, and had at most maxPromptTokens: {self._max_tokens} when "
                    "its pictures were looked at; put the files back and go on, or start a new run"
                )

    def _survey(self, index: int, max_rows: int | None, cache_dir: Path) -> Survey:
        return survey(
            self._sources[index],
            self._encoder,
            prompt=self._prompt,
            columns=self._columns,
            max_tokens=self._max_tokens,
            max_rows=max_rows,
            cache_dir=cache_dir,
            pictures=self._files[index] if self._files else None,
        )


def _all_too_long(paths: str, max_tokens: int) -> str:
    return f"every prompt of {paths} is longer than maxPromptTokens: {max_tokens}; raise it or shorten the prompts"


def _changed(path: str, result: Sequence[str]) -> str:
    return (
        f"the data set {path} is no longer what this run began with: {named_changes(result)}; put the files back "
        "and go on, "
        "or start a new run with checkpoint.initFrom"
    )
