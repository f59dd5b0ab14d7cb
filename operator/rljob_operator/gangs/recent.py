"""`Recent`: objects that many jobs look at and that seldom change, read once a minute at most."""

from __future__ import annotations

from collections.abc import Callable

from rljob_operator.cluster.api import Cluster, Object
from rljob_operator.cluster.errors import Forbidden
from rljob_operator.cluster.kinds import Kind

_GOOD_SECONDS = 60.0


class Recent:
    """Of objects without a namespace: flavors, priority classes."""

    def __init__(self, cluster: Cluster, clock: Callable[[], float]) -> None:
        self._cluster = cluster
        self._clock = clock
        self._known: dict[tuple[Kind, str], tuple[float, Object | None | Forbidden]] = {}

    async def get(self, kind: Kind, name: str) -> Object | None:
        """The object as it was within the last minute; None when there was none.  A refusal is remembered as well."""
        known = self._known.get((kind, name))
        if known is None or self._clock() - known[0] >= _GOOD_SECONDS:
            known = self._known[kind, name] = self._clock(), await self._read(kind, name)
        if isinstance(known[1], Forbidden):
            raise known[1]
        return known[1]

    async def _read(self, kind: Kind, name: str) -> Object | None | Forbidden:
        try:
            return await self._cluster.get(kind, None, name)
        except Forbidden as error:
            return error
