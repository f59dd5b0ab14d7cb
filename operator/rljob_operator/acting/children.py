"""Makes a job's children as they should be, and refuses those that are somebody else's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar

from rljob_operator.cluster.api import Cluster, Object
from rljob_operator.cluster.errors import AlreadyExists, Forbidden
from rljob_operator.cluster.kinds import POD, RAY_SERVICE, SECRET, ResourceKind, resource_kind_of
from rljob_operator.manifests.context import Manifest
from rljob_operator.manifests.metadata import is_child_of, is_of_predecessor
from rljob_operator.states.situation.situation import Deletion

MAX_IN_FLIGHT = 50
"""Requests that are under way at once."""

Item = TypeVar("Item")


class NotOurs(Exception):
    """An object that another owner controls, or nobody, has the name of a child."""

    def __init__(self, kind: ResourceKind, child: Object, is_predecessors: bool) -> None:
        name, namespace = child["metadata"]["name"], child["metadata"]["namespace"]
        owner = "a deleted job of the same name" if is_predecessors else "somebody else"
        super().__init__(f"{kind.kind} {name} in namespace {namespace} belongs to {owner}; delete or rename it")
        self.is_predecessors = is_predecessors


class Children:
    """The children of one job."""

    def __init__(self, cluster: Cluster, namespace: str, job: str, uid: str) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._job = job
        self._uid = uid

    async def make(self, manifest: Manifest) -> Object:
        """Create it; one of ours that is there already is taken as it is, except that what differs is put right.

        Raises NotOurs.
        """
        kind = resource_kind_of(manifest)
        try:
            return await self._cluster.create(kind, self._namespace, manifest)
        except AlreadyExists:
            result = await self._cluster.get(kind, self._namespace, manifest["metadata"]["name"])
            if result is None:
                raise
            self._check(kind, result)
            return await self._put_right(kind, manifest, result)

    async def heal(self, manifest: Manifest) -> bool:
        """As `make` of a child that should be there; whether it was not, or not as it should be."""
        kind = resource_kind_of(manifest)
        result = await self._cluster.get(kind, self._namespace, manifest["metadata"]["name"])
        if result is None:
            await self.make(manifest)
            return True
        self._check(kind, result)
        return await self._put_right(kind, manifest, result) is not result

    async def make_once(self, manifest: Manifest) -> None:
        """Create it; one of ours that is there already stays as it is."""
        kind = resource_kind_of(manifest)
        try:
            await self._cluster.create(kind, self._namespace, manifest)
        except AlreadyExists:
            await self.existing(kind, manifest["metadata"]["name"])

    async def make_pod(self, manifest: Manifest) -> Object:
        """Create it, or find that it was created already; pods are never changed."""
        try:
            return await self._cluster.create(POD, self._namespace, manifest)
        except AlreadyExists:
            existing = await self.existing(POD, manifest["metadata"]["name"])
            if existing is None:
                raise
            return existing

    async def delete_job(self, kind: ResourceKind) -> None:
        """Delete the job itself; garbage collection takes the children."""
        await self._cluster.delete(kind, self._namespace, self._job, uid=self._uid)

    async def delete(self, child: Object) -> None:
        """Delete this very object, unless it is somebody else's."""
        await self.delete_of(resource_kind_of(child), child)

    async def delete_of(self, kind: ResourceKind, child: Object) -> None:
        """As `delete`, of an item of a list, which does not say its kind."""
        if is_child_of(child, self._uid):
            name, uid = child["metadata"]["name"], child["metadata"]["uid"]
            await self._cluster.delete(kind, self._namespace, name, uid=uid)

    async def existing(self, kind: ResourceKind, name: str) -> Object | None:
        """The child of this name; NotOurs when it is none. A Secret that may not be read is not looked at."""
        try:
            result = await self._cluster.get(kind, self._namespace, name)
        except Forbidden:
            if kind is not SECRET:
                raise
            return None
        if result is not None:
            self._check(kind, result)
        return result

    async def delete_pods(self, deletions: Iterable[Deletion]) -> None:
        """Delete each, that very one and no namesake."""

        async def delete(item: Deletion) -> None:
            kind, grace_seconds = (POD, item.grace_seconds) if item.kind == "Pod" else (RAY_SERVICE, None)
            await self._cluster.delete(
                kind, self._namespace, item.name, grace_seconds=grace_seconds, uid=item.uid
            )  # fmt: skip

        await for_each(deletions, delete)

    async def _put_right(self, kind: ResourceKind, manifest: Manifest, result: Object) -> Object:
        return result if covers(result, manifest) else await self._cluster.apply(kind, self._namespace, manifest)

    def _check(self, kind: ResourceKind, result: Object) -> None:
        if not is_child_of(result, self._uid):
            raise NotOurs(kind, result, is_of_predecessor(result, self._job, self._uid))


def covers(result: Any, wanted: Any) -> bool:
    """Whether everything that is wanted is there; what the server or others added does not matter."""
    if isinstance(wanted, Mapping):
        return isinstance(result, Mapping) and all(covers(result.get(key), value) for key, value in wanted.items())
    if isinstance(wanted, list):
        return (
            isinstance(result, list) and len(result) == len(wanted) and all(map(covers, result, wanted))
        )  # fmt: skip
    return bool(result == wanted)


async def for_each(
    items: Iterable[Item], act: Callable[[Item], Awaitable[None]], max_in_flight: int = MAX_IN_FLIGHT
) -> None:
    """`act` on every item, some at a time.

    After the first error no further one is begun; those under way end, and then it is raised, as it is: in a group of
    exceptions nobody would know it.
    """
    all_items, errors = list(items), list[Exception]()
    waiting = iter(all_items)

    async def work() -> None:
        for item in waiting:
            if errors:
                return
            try:
                await act(item)
            except Exception as error:
                errors.append(error)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(max_in_flight, len(all_items))):
            group.create_task(work())
    if errors:
        raise errors[0]
