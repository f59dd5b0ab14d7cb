"""Which files a data set consists of, and whether they still are what they were: pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass

MAX_NAMED = 5
"""Changes that a message names."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file, or an object of a store."""

    path: str
    size: int
    """In bytes."""
    version: str
    """Changes when the content does: an ETag, or the time of the last change where a store has none."""


Listing = tuple[DataFile, ...]
"""In the order in which the data set has them."""


@dataclass(frozen=True, slots=True)
class DataIdentity:
    """What a resumed run compares with what it began with."""

    fingerprint: str | None = None
    """Fingerprint of the content: this decides. None where no data is read."""
    files: Listing = ()
    """These say what happened where the content is another."""


def joined_identity(identities: Sequence[DataIdentity]) -> DataIdentity:
    """What several data sets are together that read the same files; one alone is what it was."""
    if len(identities) == 1:
        return identities[0]
    fingerprints = [identity.fingerprint for identity in identities]
    together = hashlib.sha256(repr(fingerprints).encode()).hexdigest() if fingerprints else None
    return DataIdentity(together, identities[0].files if identities else ())


def listing_to_json(files: Listing) -> list[list[str | int]]:
    return [list(astuple(file)) for file in files]


def listing_from_json(rows: Iterable[Sequence[str | int]]) -> Listing:
    return tuple(DataFile(str(path), int(size), str(version)) for path, size, version in rows)


def changes(before: Listing, now: Listing) -> list[str]:
    """What happened to the files between two listings, a clause each; empty where nothing did."""
    return list(_changes({file.path: file for file in before}, {file.path: file for file in now}))


def _changes(before: Mapping[str, DataFile], now: Mapping[str, DataFile]) -> Iterator[str]:
    for path in sorted(before.keys() | now.keys()):
        old, new = before.get(path), now.get(path)
        if old is None:
            yield f"{path} is new"
        elif new is None:
            yield f"{path} is gone"
        elif old.size != new.size:
            yield f"{path} had {old.size} bytes and has {new.size}"
        elif old.version != new.version:
            yield f"{path} was written again ({old.version}, now {new.version})"


def named_changes(result: Sequence[str]) -> str:
    """Changes as one clause; of many, the first few and how many more."""
    more = f", and {len(result) - MAX_NAMED} more" if len(result) > MAX_NAMED else ""
    return ", ".join(result[:MAX_NAMED]) + more
