"""`Cluster`: what the rest of the operator may ask of an API server."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, Protocol

from rljob_operator.cluster.kinds import ResourceKind

Object = dict[str, Any]
"""An object of the API as JSON."""

FIELD_MANAGER = "rljob-operator"

MOST_ITEMS = 500
"""Items on a page of a list, at most."""


@dataclass(frozen=True)
class Page:
    """One page of a list."""

    items: tuple[Object, ...]
    resource_version: str
    """From where a watch continues."""
    continue_: str | None = None
    """Asks for the next page. None: this was the last."""
    next_limit: int = MOST_ITEMS
    """How many objects the next page may have."""


class Cluster(Protocol):
    """Six verbs, each of which may raise any `ClusterError` of errors.py."""

    async def get(self, kind: ResourceKind, namespace: str | None, name: str) -> Object | None:
        """The object, or None when there is none."""
        ...

    async def list(
        self,
        kind: ResourceKind,
        namespace: str | None = None,
        *,
        labels: str = "",
        limit: int = MOST_ITEMS,
        continue_: str | None = None,
    ) -> Page:
        """One page, of at most `limit` objects and of fewer where they are large; all namespaces when `namespace` is
        None."""
        ...

    def watch(
        self, kind: ResourceKind, namespace: str | None = None, *, labels: str = "", resource_version: str
    ) -> AsyncGenerator[tuple[str, Object], None]:
        """ADDED, MODIFIED, DELETED and BOOKMARK after `resource_version`, until the server ends the stream.

        Raises `Gone` when that version is too old, `Unavailable` when the connection breaks or falls silent.
        """
        ...

    async def create(self, kind: ResourceKind, namespace: str | None, body: Object) -> Object:
        """The object as stored."""
        ...

    async def apply(self, kind: ResourceKind, namespace: str | None, body: Object) -> Object:
        """Server-side apply as `FIELD_MANAGER`, by force; the object as stored."""
        ...

    async def apply_status(
        self, kind: ResourceKind, namespace: str | None, body: Object, *, manager: str = FIELD_MANAGER
    ) -> Object:
        """As `apply`, of the status subresource; `NotFound` when the object is gone."""
        ...

    async def delete(
        self,
        kind: ResourceKind,
        namespace: str | None,
        name: str,
        *,
        grace_seconds: int | None = None,
        uid: str | None = None,
    ) -> bool:
        """Whether there was such an object; with `uid`, only that very one is deleted."""
        ...


async def list_pages(
    cluster: Cluster, kind: ResourceKind, namespace: str | None = None, *, labels: str = ""
) -> AsyncGenerator[Page, None]:
    """Every page of a list; all are of one version."""
    page = await cluster.list(kind, namespace, labels=labels)
    yield page
    while page.continue_:
        page = await cluster.list(kind, namespace, labels=labels, limit=page.next_limit, continue_=page.continue_)
        yield page
