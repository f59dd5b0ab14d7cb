"""The parts of a data URL, and which objects of a listing it stands for: pure."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from dataclasses import dataclass

from rljob_api.vocabulary.data_url import WEB, has_pattern, scheme_of

_TOKEN = re.compile(r"\*\*/|\*\*|\*|\?|\[[^\]]*\]|[^*?\[]+|\[")


@dataclass(frozen=True, slots=True)
class Address:
    """`s3://bucket/folder/*.jsonl`: a root that lists and reads, and a key, folder or pattern below it."""

    scheme: str
    root: str
    """`s3://bucket`, `az://account/container`, `https://host`."""
    key: str

    @staticmethod
    def of(url: str) -> Address:
        scheme = scheme_of(url)
        assert scheme is not None, "a path without a scheme is on a disk"
        parts = url.partition("://")[2].split("/")
        depth = 2 if scheme == "az" else 1
        return Address(scheme, f"{scheme}://" + "/".join(parts[:depth]), "/".join(parts[depth:]))

    @property
    def is_web(self) -> bool:
        return self.scheme in WEB

    @property
    def is_pattern(self) -> bool:
        return has_pattern(self.key)

    @property
    def prefix(self) -> str:
        """The folder to list: what comes before the first part that holds a wildcard, or the key as a folder."""
        if not self.is_pattern:
            return self.key.strip("/")
        parts = self.key.split("/")
        return "/".join(parts[: next(i for i, part in enumerate(parts) if has_pattern(part))])

    def url_of(self, key: str) -> str:
        return f"{self.root}/{key}"

    def chosen(self, keys: Iterable[str]) -> list[str]:
        """The keys below `prefix` that this address stands for, sorted; hidden ones only by name."""
        pattern = re.compile(translated(self.key)) if self.is_pattern else None
        below = f"{self.prefix}/" if self.prefix else ""
        result = (key for key in keys if not key.rpartition("/")[2].startswith(".") and not key.endswith("/"))
        if pattern is None:
            return sorted(key for key in result if key.startswith(below))
        return sorted(key for key in result if pattern.fullmatch(key))


def translated(pattern: str) -> str:
    """A file pattern as a regular expression: `*` stays within a folder, `**` does not."""
    into = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}

    def one(token: str) -> str:
        if token in into:
            return into[token]
        if token.startswith("[") and token.endswith("]") and len(token) > 2:
            return fnmatch.translate(token).removeprefix("(?s:").rpartition(")")[0]  # as in a pattern of local files
        return re.escape(token)

    return "".join(one(token) for token in _TOKEN.findall(pattern))
