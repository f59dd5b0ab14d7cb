"""Pictures that rows name: bytes in the data, files below its folder, objects of a store.

bytes                       the encoded picture
{bytes, path}               what `datasets` writes of a picture; `path` where there are no bytes
pictures/7.png              a file below the folder of the data, on the disk or in the store
s3://bucket/7.png           an object
https://host/7.png          only with `data.image.allowHttp`
data:image/png;base64,...   the encoded picture
"""

from __future__ import annotations

import base64
import binascii
import glob
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from rljob_api.vocabulary.data_url import WEB, has_pattern, problem_of, scheme_of, without_secrets
from rljob_worker.data.objects.store import Store
from rljob_worker.data.prompts import Where
from rljob_worker.data.store_retry import DEFAULT_RETRY_POLICY, StoreRetryPolicy
from rljob_worker.errors import BadData
from rljob_worker.storage.address import Address
from rljob_worker.vision.pictures import MOST_BYTES

Reference = bytes | str
"""An encoded picture, or where it is."""


@dataclass
class PictureFiles:
    """Reads the pictures of one data set.

    path: of the data set, as the job states it.   column: that names the pictures.
    """

    path: str
    column: str
    allow_http: bool = False
    retry_policy: StoreRetryPolicy = DEFAULT_RETRY_POLICY
    _stores: dict[str, Store] = field(default_factory=dict, repr=False)

    def read(self, values: Sequence[Any], where: Where) -> list[list[bytes]]:
        """The encoded pictures of some rows, of each in order.

        Raises BadData naming the row: a value of another type, a path that leaves the folder of the data, nothing
        there; InvalidJob for a store that refuses the job's credentials; DeadlineExceeded.
        """
        rows = [references_of(value, self.column, where(i)) for i, value in enumerate(values)]
        urls: dict[str, str] = {}
        row_of: dict[str, str] = {}
        for i, row in enumerate(rows):
            for item in row:
                if isinstance(item, str) and (url := self.url_of(item, where(i))) is not None:
                    urls[item] = url
                    row_of.setdefault(url, where(i))
        objects = self._objects(row_of)
        return [
            [item if isinstance(item, bytes) else self._bytes(item, urls, objects, where(i)) for item in row]
            for i, row in enumerate(rows)
        ]

    def _bytes(self, text: str, urls: Mapping[str, str], objects: Mapping[str, bytes], where: str) -> bytes:
        if text in urls:
            return objects[urls[text]]
        return _inline(text, where) if text.startswith("data:") else self._on_disk(text, where)

    def url_of(self, text: str, where: str) -> str | None:
        """The object that a text names; None for a file on the disk and for a picture in the text itself."""
        scheme = scheme_of(text)
        if scheme is None and (text.startswith("data:") or scheme_of(self.path) is None):
            return None
        url = self._beside(text, where) if scheme is None else text
        if scheme in WEB and not self.allow_http:
            raise BadData(
                f"{where}: the picture is at {without_secrets(text)}, and pictures are not fetched from web servers; "
                "download it beside the data, or write data.image.allowHttp: true"
            )
        if problem := problem_of(url):
            raise BadData(f"{where}: the picture {without_secrets(text)!r}: {'. '.join(problem)}")
        return url

    def _beside(self, text: str, where: str) -> str:
        """The URL of an object below the folder of the data."""
        address = Address.of(self.path)
        is_file = not address.is_pattern and PurePosixPath(address.key).suffix != ""
        folder = PurePosixPath(address.key).parent if is_file else PurePosixPath(address.prefix)
        if text.startswith("/") or ".." in PurePosixPath(text).parts:
            raise BadData(_outside(where, text, address.url_of(str(folder))))
        return address.url_of(str(folder / text))

    def _on_disk(self, text: str, where: str) -> bytes:
        folder = _folder(self.path).resolve()
        file = (folder / text).resolve()
        if not file.is_relative_to(folder):
            raise BadData(_outside(where, text, str(folder)))
        try:
            size = file.stat().st_size
            if size > MOST_BYTES:
                raise BadData(f"{where}: the picture {file} has {size:,} bytes; write one of at most {MOST_BYTES:,}")
            return file.read_bytes()
        except OSError as error:
            raise BadData(f"{where}: the picture {file} cannot be read: {error.strerror}") from error

    def _objects(self, row_of: Mapping[str, str]) -> dict[str, bytes]:
        """Objects by URL, read together. row_of: which row names one."""
        by_root: dict[str, list[str]] = {}
        for url in row_of:
            by_root.setdefault(Address.of(url).root, []).append(url)
        result: dict[str, bytes] = {}
        for root, urls in by_root.items():
            store = self._stores.setdefault(root, Store(Address.of(root + "/"), self.retry_policy))
            try:
                contents = store.read_objects([Address.of(url).key for url in urls], MOST_BYTES)
            except BadData as error:
                row = next((where for url, where in row_of.items() if url in str(error)), "")
                raise BadData(f"{row}: the picture {error}" if row else str(error)) from error
            result |= dict(zip(urls, contents, strict=True))
        return result


def references_of(value: Any, column: str, where: str) -> list[Reference]:
    """The pictures that a value names, in order; none for None. Raises BadData for a value of another type."""
    if value is None:
        return []
    if isinstance(value, (list, tuple)):
        return [item for one in value for item in references_of(one, column, where)]
    if isinstance(value, (bytes, bytearray, memoryview)):
        return [bytes(value)]
    if isinstance(value, str) and value:
        return [value]
    if isinstance(value, Mapping) and {"bytes", "path"} & set(value):
        own = value.get("bytes")
        return references_of(own if own is not None else value.get("path"), column, where)
    kind = "an empty text" if value == "" else f"a {type(value).__name__}"
    raise BadData(
        f"{where}: the column {column!r} holds {kind}, not pictures; write encoded bytes, a path beside the data, a "
        "URL of a store, a record of bytes and path, or a list of these"
    )


def _inline(text: str, where: str) -> bytes:
    head, comma, body = text.partition(",")
    if not comma or not head.endswith(";base64"):
        raise BadData(f"{where}: the picture begins with {text[:32]!r}; a data URL is data:image/png;base64,...")
    try:
        return base64.b64decode(body, validate=True)
    except binascii.Error as error:
        raise BadData(f"{where}: the picture's base64 is damaged: {error}") from error


def _folder(path: str) -> Path:
    """The folder of a data set on a disk: of a pattern the part before its first wildcard."""
    place = Path(path)
    if place.is_dir():
        return place
    if glob.has_magic(path) and not place.exists():
        parts = place.parts
        return Path(*parts[: next(i for i, part in enumerate(parts) if has_pattern(part))])
    return place.parent


def _outside(where: str, text: str, folder: str) -> str:
    return f"{where}: the picture {text!r} is not below {folder}, the folder of the data; put it there"
