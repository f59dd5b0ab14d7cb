"""Pictures and videos that rows name: bytes in the data, files below its folder, objects of a store.

bytes                       the encoded picture
{bytes, path}               what `datasets` writes of a picture; `path` where there are no bytes
pictures/7.png              a file below the folder of the data, on the disk or in the store
s3://bucket/7.png           an object
https://host/7.png          only with `data.image.allowHttp`, and no videos
data:image/png;base64,...   the encoded picture
"""

from __future__ import annotations

import base64
import binascii
import glob
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from rljob_api.vocabulary.data_url import WEB, has_pattern, hub_data, problem_of, scheme_of, without_secrets
from rljob_worker.data.objects.store import Store
from rljob_worker.data.prompts import Where
from rljob_worker.data.store_retry import DEFAULT_RETRY_POLICY, StoreRetryPolicy
from rljob_worker.errors import BadData
from rljob_worker.storage.address import Address
from rljob_worker.vision.pictures import MOST_BYTES, BadPicture
from rljob_worker.vision.videos import MOST_VIDEO_BYTES, is_video, read_video_header

Reference = bytes | str
"""An encoded picture, or where it is."""


@dataclass
class PictureFiles:
    """Reads the pictures, or the videos, of one data set.

    path: of the data set, as the job states it.   column: that names them.
    """

    path: str
    column: str
    allow_http: bool = False
    retry_policy: StoreRetryPolicy = DEFAULT_RETRY_POLICY
    kind: Literal["picture", "video"] = "picture"
    _stores: dict[str, Store] = field(default_factory=dict, repr=False)

    def read(self, values: Sequence[Any], where: Where) -> list[list[bytes]]:
        """What some rows show, encoded, of each in order.

        Raises BadData naming the row: a value of another type, a path that leaves the folder of the data, nothing
        there, a video among pictures or the reverse; InvalidJob for a store that refuses the job's credentials;
        DeadlineExceeded.
        """
        rows = [references_of(value, self.column, where(i), self.kind) for i, value in enumerate(values)]
        urls: dict[str, str] = {}
        row_of: dict[str, str] = {}
        for i, row in enumerate(rows):
            for item in row:
                if isinstance(item, str) and (url := self.url_of(item, where(i))) is not None:
                    urls[item] = url
                    row_of.setdefault(url, where(i))
        objects = self._objects(row_of)
        result = [
            [item if isinstance(item, bytes) else self._bytes(item, urls, objects, where(i)) for item in row]
            for i, row in enumerate(rows)
        ]
        for i, encoded_row in enumerate(result):
            for encoded in encoded_row:
                self._require_kind(encoded, where(i))
        return result

    def _require_kind(self, encoded: bytes, where: str) -> None:
        if is_video(encoded) == (self.kind == "video"):
            return
        if self.kind == "picture":
            raise BadData(
                f"{where}: the column {self.column!r} holds a video, or an animated picture; write one of its frames, "
                "or all into the column that data.videosColumn names"
            )
        try:
            read_video_header(encoded)
        except BadPicture as error:
            raise BadData(f"{where}: {error}") from error

    @property
    def _most_bytes(self) -> int:
        return MOST_BYTES if self.kind == "picture" else MOST_VIDEO_BYTES

    def _bytes(self, text: str, urls: Mapping[str, str], objects: Mapping[str, bytes], where: str) -> bytes:
        if text in urls:
            return objects[urls[text]]
        return _inline(text, where, self.kind) if text.startswith("data:") else self._on_disk(text, where)

    def url_of(self, text: str, where: str) -> str | None:
        """The object that a text names; None for a file on the disk and for a picture in the text itself."""
        scheme = scheme_of(text)
        if scheme is None and (text.startswith("data:") or scheme_of(self.path) is None):
            return None
        url = self._beside(text, where) if scheme is None else text
        if scheme in WEB and not self.allow_http:
            allow = ", or write data.image.allowHttp: true" if self.kind == "picture" else ""
            raise BadData(
                f"{where}: the {self.kind} is at {without_secrets(text)}, and {self.kind}s are not fetched from web "
                f"servers; download it beside the data{allow}"
            )
        if problem := problem_of(url):
            raise BadData(f"{where}: the {self.kind} {without_secrets(text)!r}: {'. '.join(problem)}")
        return url

    def _beside(self, text: str, where: str) -> str:
        """The URL of an object below the folder of the data."""
        if hub_data(self.path) is not None:
            raise BadData(
                f"{where}: the {self.kind} {text!r} is a file, and of a data set of the Hub rows alone are read, with "
                f"{self.kind}s that they hold as bytes; download it and name its folder"
            )
        address = Address.of(self.path)
        is_file = not address.is_pattern and PurePosixPath(address.key).suffix != ""
        folder = PurePosixPath(address.key).parent if is_file else PurePosixPath(address.prefix)
        if text.startswith("/") or ".." in PurePosixPath(text).parts:
            raise BadData(_outside(where, self.kind, text, address.url_of(str(folder))))
        return address.url_of(str(folder / text))

    def _on_disk(self, text: str, where: str) -> bytes:
        folder = _folder(self.path).resolve()
        try:
            file = (folder / text).resolve()
            if not file.is_relative_to(folder):
                raise BadData(_outside(where, self.kind, text, str(folder)))
            status = file.stat()
            if not stat.S_ISREG(status.st_mode):  # reading a pipe would wait for its writer
                raise BadData(self._unreadable(text, where, "it is not a file"))
            if status.st_size > (most := self._most_bytes):
                size = f"{status.st_size:,}"
                raise BadData(f"{where}: the {self.kind} {file} has {size} bytes; write one of at most {most:,}")
            return file.read_bytes()
        except BadData:
            raise
        except (OSError, RuntimeError, ValueError) as error:  # the latter two for links in a circle and zero bytes
            raise BadData(self._unreadable(text, where, getattr(error, "strerror", None) or str(error))) from error

    def _unreadable(self, text: str, where: str, reason: str) -> str:
        what = f"the {self.kind} {text!r} below {_folder(self.path).resolve()} cannot be read: {reason}"
        return f"{where}: {what}; correct the column {self.column!r}, or put the file there"

    def _objects(self, row_of: Mapping[str, str]) -> dict[str, bytes]:
        """Objects by URL, read together. row_of: which row names one."""
        by_root: dict[str, list[str]] = {}
        for url in row_of:
            by_root.setdefault(Address.of(url).root, []).append(url)
        result: dict[str, bytes] = {}
        for root, urls in by_root.items():
            store = self._stores.setdefault(root, Store(Address.of(root + "/"), self.retry_policy))
            try:
                contents = store.read_objects([Address.of(url).key for url in urls], self._most_bytes)
            except BadData as error:
                row = next((where for url, where in row_of.items() if url in str(error)), "")
                cure = f"; correct the column {self.column!r}"
                raise BadData((f"{row}: the {self.kind} {error}" if row else str(error)) + cure) from error
            result |= dict(zip(urls, contents, strict=True))
        return result


@dataclass(frozen=True, slots=True)
class ShownFiles:
    """Reads all that the rows of one data set show."""

    readers: tuple[PictureFiles, ...]
    """At most one of pictures and one of videos."""

    @staticmethod
    def of(
        path: str,
        images: str | None,
        videos: str | None,
        allow_http: bool,
        retry_policy: StoreRetryPolicy = DEFAULT_RETRY_POLICY,
    ) -> ShownFiles:
        """images, videos: the columns that name them."""
        pictures = [PictureFiles(path, images, allow_http, retry_policy)] if images else []
        films = [PictureFiles(path, videos, retry_policy=retry_policy, kind="video")] if videos else []
        return ShownFiles((*pictures, *films))

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(reader.column for reader in self.readers)

    def read(self, table: Mapping[str, Sequence[Any]], where: Where) -> list[list[bytes]]:
        """The pictures of each row, and its videos behind them. Raises as `PictureFiles.read` does."""
        of_kinds = [reader.read(table[reader.column], where) for reader in self.readers]
        return [[item for row in rows for item in row] for rows in zip(*of_kinds, strict=True)]


def references_of(value: Any, column: str, where: str, kind: str = "picture") -> list[Reference]:
    """The pictures that a value names, in order; none for None. Raises BadData for a value of another type."""
    if value is None:
        return []
    if isinstance(value, (list, tuple)):
        return [item for one in value for item in _listed(one, column, where, kind)]
    if isinstance(value, (bytes, bytearray, memoryview)):
        return [bytes(value)]
    if isinstance(value, str) and value:
        return [value]
    if isinstance(value, Mapping) and {"bytes", "path"} & set(value):
        own = value.get("bytes")
        return references_of(own if own is not None else value.get("path"), column, where, kind)
    what = "an empty text" if value == "" else f"a {type(value).__name__}"
    raise BadData(
        f"{where}: the column {column!r} holds {what}, not {kind}s; write encoded bytes, a path beside the data, a "
        "URL of a store, a record of bytes and path, or a list of these"
    )


def _listed(value: Any, column: str, where: str, kind: str) -> list[Reference]:
    references = references_of(value, column, where, kind)
    if references or isinstance(value, (list, tuple)):
        return references
    raise BadData(
        f"{where}: the column {column!r} has a list with a null in place of a {kind}; write it, or leave it out"
    )


def _inline(text: str, where: str, kind: str) -> bytes:
    head, comma, body = text.partition(",")
    if not comma or not head.endswith(";base64"):
        raise BadData(f"{where}: the {kind} begins with {text[:32]!r}; a data URL is data:image/png;base64,...")
    try:
        return base64.b64decode(body, validate=True)
    except binascii.Error as error:
        raise BadData(f"{where}: the {kind}'s base64 is damaged: {error}") from error


def _folder(path: str) -> Path:
    """The folder of a data set on a disk: of a pattern the part before its first wildcard."""
    place = Path(path)
    if place.is_dir():
        return place
    if glob.has_magic(path) and not place.exists():
        parts = place.parts
        return Path(*parts[: next(i for i, part in enumerate(parts) if has_pattern(part))])
    return place.parent


def _outside(where: str, kind: str, text: str, folder: str) -> str:
    return f"{where}: the {kind} {text!r} is not below {folder}, the folder of the data; put it there"
