"""Which versions one host keeps of one source, beyond what its own ranks and children still need. Pure.

    begun ─▶ closed: whole, given to any host that asks late ─▶ released, or dropped for want of room

The source's host is the store: it keeps a version until its source releases it by number, and at most as many as the
plan has (`Plan.num_versions`). Where the plan has one the next begins when the one before is released, no host can be
late, and a model may be larger than the store: what is kept is then dropped as soon as its slots are needed. Other
hosts keep what they have room for, newest first, so that a late host may be served by the host above it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rljob_worker.databuffer.protocol.errors import OutOfOrder


@dataclass(slots=True)
class Versions:
    """Those that are kept on this host, of one source."""

    name: str
    """Name of the edge, for messages."""
    most: int
    """Versions that exist at once, of the plan."""
    is_store: bool
    """Whether this is the source's own host."""
    _num_chunks: dict[int, int | None] = field(default_factory=dict)
    """Chunks of each version that is kept, rising; None until its source has closed it."""

    @property
    def may_drop(self) -> bool:
        """Whether what is kept may go before it is released."""
        return not self.is_store or self.most == 1

    def begin(self, version: int) -> None:
        """A version begins. Raises OutOfOrder at the source while as many are held as the plan has."""
        if not self.is_store and self.most == 1:
            return
        if len(self._num_chunks) == self.most:
            if self.is_store:
                raise OutOfOrder(
                    f"version {version} of {self.name} cannot begin: {version_list(self.held)} not released, and "
                    "the plan has "
                    f"room for {self.most}"
                )
            self.drop(self.held[0])
        self._num_chunks[version] = None

    def closed(self, version: int, num_chunks: int) -> None:
        """A source has sent everything of a version."""
        if version in self._num_chunks:
            self._num_chunks[version] = num_chunks

    def release(self, version: int) -> None:
        """Nobody will ask for this version any more."""
        self._num_chunks.pop(version, None)

    def drop(self, version: int) -> None:
        """A version is not whole any more."""
        del self._num_chunks[version]

    def keeps(self, version: int) -> bool:
        """Whether chunks of a version stay when everybody who was offered them has them."""
        return version in self._num_chunks

    def num_chunks(self, version: int) -> int | None:
        """Chunks of a version that is kept and closed."""
        return self._num_chunks.get(version)

    @property
    def held(self) -> tuple[int, ...]:
        """Versions that are kept, rising."""
        return tuple(self._num_chunks)

    @property
    def whole(self) -> tuple[int, ...]:
        """Kept versions that were closed."""
        return tuple(version for version, num_chunks in self._num_chunks.items() if num_chunks is not None)


def version_list(versions: tuple[int, ...]) -> str:
    """Versions, in words, and their verb."""
    if not versions:
        return "no version is"
    if len(versions) == 1:
        return f"version {versions[0]} is"
    return f"versions {', '.join(map(str, versions[:-1]))} and {versions[-1]} are"
