"""Requests to one bucket. Every failure is an OSError (`failure`)."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from rljob_worker.storage.address import Address
from rljob_worker.storage.connection import connected
from rljob_worker.storage.store_errors import VersionConflict, failure_of, is_of_store

REQUEST_TIMEOUT_SECONDS = 300.0
"""How long a store that does not answer is asked again. Half of the time that workers wait for each other by default,
so that the one which waits for the store says why before those that wait for it give up."""


@dataclass(eq=False)
class Bucket:
    """Opens its connections at the first request, so that it may be made before a fork."""

    address: Address
    timeout_seconds: float = REQUEST_TIMEOUT_SECONDS
    _client: Any = field(default=None, repr=False)

    @property
    def client(self) -> Any:
        if self._client is None:
            self._client = connected(self.address, self.timeout_seconds)
        return self._client

    def size(self, key: str) -> int | None:
        """Size of an object; None where there is none."""
        import obstore

        try:
            with self.errors(key):
                return int(obstore.head(self.client, key)["size"])
        except FileNotFoundError:
            return None

    def read(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        """Bytes [start, stop) of an object, or all."""
        import obstore

        with self.errors(key):
            if stop is None:
                return bytes(obstore.get(self.client, key).bytes())
            return bytes(obstore.get_range(self.client, key, start=start, end=stop)) if stop > start else b""

    def put(self, key: str, body: bytes) -> None:
        """Write an object whole, over what is there."""
        import obstore

        with self.errors(key):
            obstore.put(self.client, key, body)

    def put_if(self, key: str, body: bytes, version: str | None) -> str:
        """Write an object if it is still `version`, or with None if there is none; the new version. Raises Conflict.

        A request whose answer was lost is asked again and then meets what it wrote itself: that is not a conflict.
        """
        import obstore

        mode: Any = "create" if version is None else {"e_tag": version}
        try:
            with self.errors(key):
                return str(obstore.put(self.client, key, body, mode=mode, use_multipart=False)["e_tag"])
        except (VersionConflict, FileNotFoundError) as error:
            result = self._found(key)
            if result is None or result[0] != body:
                raise VersionConflict(self.address.url_of(key)) from error
            return result[1]

    def heeds_conditions(self, key: str) -> bool:
        """Whether the store knows conditional puts, tried on an object of our own that goes again: one that does
        not takes them as plain ones, without a word."""
        with suppress(VersionConflict):  # left by one that was killed here
            self.put_if(key, secrets.token_bytes(16), None)
        try:
            self.put_if(key, secrets.token_bytes(16), None)
        except VersionConflict:
            return self._refuses_another_version(key)
        finally:
            self.delete([key])
        return False

    def _refuses_another_version(self, key: str) -> bool:
        try:
            self.put_if(key, secrets.token_bytes(16), '"0123456789abcdef0123456789abcdef"')
        except VersionConflict:
            return True
        return False

    def objects(self, prefix: str) -> Iterator[tuple[str, int]]:
        """(key, size) of every object below a folder."""
        import obstore

        with self.errors(prefix):
            for page in obstore.list(self.client, prefix or None, chunk_size=1000):
                yield from ((meta["path"], meta["size"]) for meta in page)

    def children(self, prefix: str) -> list[str]:
        """Keys of the objects and folders right below a folder, ascending."""
        import obstore

        with self.errors(prefix):
            listing = obstore.list_with_delimiter(self.client, prefix or None)
        return sorted([*listing["common_prefixes"], *(meta["path"] for meta in listing["objects"])])

    def delete(self, keys: list[str]) -> None:
        """Objects that are not there are passed over."""
        import obstore

        if keys:
            with self.errors(keys[0]):
                try:
                    obstore.delete(self.client, keys)
                except FileNotFoundError:
                    return

    def copy(self, source: str, target: str) -> None:
        """Inside the store."""
        import obstore

        with self.errors(source):
            obstore.copy(self.client, source, target)

    @contextmanager
    def errors(self, key: str) -> Iterator[None]:
        """Errors of the library as OSErrors."""
        try:
            yield
        except Exception as error:
            if not is_of_store(error):
                raise
            raise failure_of(error, self.address, self.address.url_of(key)) from error

    def _found(self, key: str) -> tuple[bytes, str] | None:
        import obstore

        try:
            with self.errors(key):
                got = obstore.get(self.client, key)
                return bytes(got.bytes()), str(got.meta["e_tag"])
        except FileNotFoundError:
            return None
