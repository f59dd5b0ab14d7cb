"""One bucket or host: what it holds, and ranges of bytes of it. Credentials come from the environment alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from rljob_worker.data.listing import DataFile, Listing
from rljob_worker.data.store_retry import StoreRetryPolicy
from rljob_worker.errors import BadData, InvalidJob
from rljob_worker.storage.address import Address
from rljob_worker.storage.connection import connected
from rljob_worker.storage.store_errors import (
    StoreErrorKind,
    VersionConflict,
    error_kind_of,
    failure_of,
    is_for_good,
    is_of_store,
)

if TYPE_CHECKING:
    from obstore import ObjectMeta

Answer = TypeVar("Answer")

MAX_AT_ONCE = 32
"""Requests of one process that are under way together."""

MAX_GAP_BYTES = 64 << 10
"""Bytes that are read and thrown away rather than asked around: a request costs more than they do."""

MAX_SPAN_BYTES = 8 << 20
"""No request grows beyond this by joining."""


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes [start, stop) of a file."""

    file: DataFile
    start: int
    stop: int


class RangeStore(Protocol):
    """What has the files of one data set."""

    def list_files(self) -> Listing:
        """Those there are now."""
        ...

    def at(self, listing: Listing) -> RangeStore:
        """What reads the files of a listing."""
        ...

    def read(self, spans: Sequence[Span]) -> list[bytes]:
        """The bytes of some spans, in the order asked for."""
        ...


@dataclass
class Store:
    """Opens its connections at the first request, so that it may be made before a fork."""

    address: Address
    retry_policy: StoreRetryPolicy
    _client: Any = field(default=None, repr=False)

    def list_files(self) -> Listing:
        """The objects that the address stands for, in the order of their names.

        Raises BadData when there are none; InvalidJob for credentials, and where there is no bucket; DeadlineExceeded.
        """
        return asyncio.run(self._list())

    def at(self, _listing: Listing) -> Store:
        """Itself: it compares versions as it reads."""
        return self

    def read(self, spans: Sequence[Span]) -> list[bytes]:
        """The bytes of some spans, in the order asked for: one request each, many at once.

        Raises BadData when a file is not the one that was listed; InvalidJob, DeadlineExceeded.
        """
        return asyncio.run(self._read(spans))

    def read_objects(self, keys: Sequence[str], most_bytes: int) -> list[bytes]:
        """Whole objects that were not listed, in the order asked for, many at once.

        Raises BadData for one that is not there or has more than `most_bytes`, naming its URL; InvalidJob,
        DeadlineExceeded.
        """
        return asyncio.run(self._read_objects(keys, most_bytes))

    async def _list(self) -> Listing:
        if not self.address.is_pattern and (alone := await self._head()) is not None:
            return (alone,)
        if self.address.is_web:
            raise BadData(f"there is no file at {self.address.url_of(self.address.key)}")
        where = self.address.url_of(self.address.prefix)
        entries = await self._asked(where, self._collect)
        by_key = {meta["path"]: meta for meta in entries}
        return tuple(self._file(by_key[key]) for key in self.address.chosen(by_key))

    async def _collect(self) -> Sequence[ObjectMeta]:
        stream = self.client.list(self.address.prefix or None, chunk_size=1000)
        objects: Sequence[ObjectMeta] = await stream.collect_async()
        return objects

    async def _head(self) -> DataFile | None:
        """The object of exactly this name."""
        key = self.address.key
        if not key or key.endswith("/"):
            return None
        url = self.address.url_of(key)
        try:
            return self._file(await self.retry_policy.with_retries(url, lambda: self.client.head_async(key)))
        except Exception as error:
            if error_kind_of(error) is StoreErrorKind.ABSENT:
                return None
            raise self._explained(url, error) from error

    async def _read(self, spans: Sequence[Span]) -> list[bytes]:
        turn = asyncio.Semaphore(MAX_AT_ONCE)

        async def one(span: Span) -> bytes:
            async with turn:
                return await self._asked(span.file.path, lambda: self._get(span))

        return list(await asyncio.gather(*map(one, spans)))

    async def _read_objects(self, keys: Sequence[str], most_bytes: int) -> list[bytes]:
        turn = asyncio.Semaphore(MAX_AT_ONCE)

        async def get(key: str) -> bytes:
            got = await self.client.get_async(key)
            if got.meta["size"] > most_bytes:
                url = self.address.url_of(key)
                raise BadData(f"{url} has {got.meta['size']:,} bytes; at most {most_bytes:,} are read")
            return bytes(await got.bytes_async())

        async def one(key: str) -> bytes:
            async with turn:
                return await self._asked(self.address.url_of(key), lambda: get(key))

        return list(await asyncio.gather(*map(one, keys)))

    async def _get(self, span: Span) -> bytes:
        file = span.file
        # a weak tag never matches If-Match; what came with the answer is compared below
        condition = {"if_match": file.version} if file.version.startswith('"') else {}
        key = file.path.removeprefix(f"{self.address.root}/")
        got = await self.client.get_async(key, options={"range": (span.start, span.stop), **condition})
        now = self._file(got.meta)
        if (now.size, now.version) != (file.size, file.version):
            raise BadData(_replaced(file.path))
        return bytes(await got.bytes_async())

    def _file(self, meta: ObjectMeta) -> DataFile:
        version = _quoted(meta["e_tag"]) if meta["e_tag"] else meta["last_modified"].isoformat()
        return DataFile(self.address.url_of(meta["path"]), meta["size"], version)

    async def _asked(self, what: str, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        try:
            return await self.retry_policy.with_retries(what, ask)
        except Exception as error:
            raise self._explained(what, error) from error

    def _explained(self, what: str, error: Exception) -> Exception:
        """An error of the store as one of the job; any other as it is."""
        if not is_of_store(error):
            return error
        failure = failure_of(error, self.address, what)
        if isinstance(failure, VersionConflict):
            return BadData(_replaced(what))
        return (InvalidJob if is_for_good(failure) else BadData)(f"{what}: {failure.strerror}")

    @property
    def client(self) -> Any:
        if self._client is None:
            self._client = connected(self.address)
        return self._client


def _quoted(tag: str) -> str:
    """An ETag as it is in the header of an answer; listings of some stores leave its quotes out."""
    return tag if tag.endswith('"') else f'"{tag}"'


def _replaced(path: str) -> str:
    return f"{path} was replaced while the job read it: put the file back and go on, or start a new run"


def coalesced_spans(spans: Sequence[Span]) -> tuple[list[Span], list[int]]:
    """Fewer spans that cover all, and in which of them each of the given ones lies."""
    order = sorted(range(len(spans)), key=lambda i: (spans[i].file.path, spans[i].start))
    result: list[Span] = []
    home = [0] * len(spans)
    for i in order:
        span = spans[i]
        if result and _fits(result[-1], span):
            result[-1] = Span(span.file, result[-1].start, max(result[-1].stop, span.stop))
        else:
            result.append(span)
        home[i] = len(result) - 1
    return result, home


def _fits(before: Span, span: Span) -> bool:
    near = before.file == span.file and span.start - before.stop <= MAX_GAP_BYTES
    return near and span.stop - before.start <= MAX_SPAN_BYTES
