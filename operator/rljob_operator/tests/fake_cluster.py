"""An API server in memory: versions, server-side apply by whole objects, graceful deletion of pods, garbage collection.

It plays kubelet and scheduler only as far as a test asks for it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from typing import Any

from pydantic import ValidationError

from rljob_api.v1alpha1.status import RLJobStatus
from rljob_operator.cluster.api import FIELD_MANAGER, Object, Page
from rljob_operator.cluster.errors import AlreadyExists, ApiError, NotFound, Rejected, UpdateConflict
from rljob_operator.cluster.kinds import ALL, EVENT, POD, RLJOB, WORKLOAD_KUEUE, WORKLOAD_KUEUE_V1BETA2, ResourceKind
from rljob_operator.vocabulary.key import Key
from rljob_operator.vocabulary.timestamps import seconds_of, timestamp

Name = tuple[str, str | None, str]


class Killed(BaseException):
    """The operator's process is gone: no `except Exception` of it may see this."""


class FakeCluster:
    """Implements `Cluster`.  `clock()` gives the server's time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._objects: dict[Name, Object] = {}
        self.dropped: dict[Name, Object] = {}
        """The last state of what was deleted."""
        self._version = 0
        self.requests: list[tuple[str, str, str]] = []
        """Verb, kind and name of every request, in order."""
        self.num_writes = 0
        self.done: list[tuple[str, str, str]] = []
        """Verb, kind and name of every write that succeeded, in order."""
        self.operator_is_dead = False
        self.kill_after_write: int | None = None
        """The operator dies when the write of this number, counted from 1, is done."""
        self.refuse: Callable[[str, ResourceKind, str], ApiError | None] = lambda verb, kind, name: None
        """Tests may refuse requests."""
        self.node_is_dead: Callable[[Object], bool] = lambda pod: False
        """Whether a pod's node ends no pod."""

    async def get(self, kind: ResourceKind, namespace: str | None, name: str) -> Object | None:
        self._asked("get", kind, name)
        return _copied(self._objects.get(_name(kind, namespace, name)))

    async def list(
        self,
        kind: ResourceKind,
        namespace: str | None = None,
        *,
        labels: str = "",
        limit: int = 500,
        continue_: str | None = None,
    ) -> Page:
        self._asked("list", kind, labels)
        start = int(continue_ or 0)
        result = self.all(kind, namespace, labels)
        rest = str(start + limit) if len(result) > start + limit else None
        return Page(tuple(result[start : start + limit]), str(self._version), rest)

    async def watch(
        self, kind: ResourceKind, namespace: str | None = None, *, labels: str = "", resource_version: str
    ) -> AsyncGenerator[tuple[str, Object], None]:
        raise AssertionError("tests read the fake directly")
        yield "", {}

    async def create(self, kind: ResourceKind, namespace: str | None, body: Object) -> Object:
        name = str(body["metadata"]["name"])
        self._asked("create", kind, name)
        if _name(kind, namespace, name) in self._objects:
            raise AlreadyExists("create", kind, namespace, f"{name} already exists")
        _check_sent(body, kind, namespace)
        return self._written(self._store(kind, namespace, body))

    async def apply(self, kind: ResourceKind, namespace: str | None, body: Object) -> Object:
        name = str(body["metadata"]["name"])
        self._asked("patch", kind, name)
        result = self._objects.get(_name(kind, namespace, name))
        if result is None:
            return self._written(self._store(kind, namespace, body))
        return self._written(self._change(kind, result, _merged(result, {**body, "metadata": result["metadata"]})))

    async def apply_status(
        self, kind: ResourceKind, namespace: str | None, body: Object, *, manager: str = FIELD_MANAGER
    ) -> Object:
        metadata = body["metadata"]
        self._asked("patch status", kind, metadata["name"])
        result = self._objects.get(_name(kind, namespace, metadata["name"]))
        if result is None:
            raise NotFound("patch", kind, namespace, f"{metadata['name']} not found")
        if (
            metadata.get("resourceVersion", result["metadata"]["resourceVersion"])
            != result["metadata"]["resourceVersion"]
        ):
            raise UpdateConflict("patch", kind, namespace, "the object has been modified")
        status = _copied(body["status"])
        _check_sent(body, kind, namespace)
        if kind == RLJOB:
            _check_status(status, namespace)
        if kind in (WORKLOAD_KUEUE, WORKLOAD_KUEUE_V1BETA2) and manager == FIELD_MANAGER:
            status = _beside_kueue(result.get("status") or {}, status)
        return self._written(self._change(kind, result, {**result, "status": status}))

    async def delete(
        self,
        kind: ResourceKind,
        namespace: str | None,
        name: str,
        *,
        grace_seconds: int | None = None,
        uid: str | None = None,
    ) -> bool:
        self._asked("delete", kind, name)
        result = self._objects.get(_name(kind, namespace, name))
        if result is None or (uid is not None and result["metadata"]["uid"] != uid):
            return False
        self.remove(kind, result, grace_seconds)
        self._written(result)
        return True

    # ---- what tests and the world do --------------------------------------------------------------

    def put(self, kind: ResourceKind, namespace: str | None, body: Object) -> Object:
        """Make an object as somebody else would."""
        return self._store(kind, namespace, body)

    def edit(self, kind: ResourceKind, namespace: str | None, name: str, **fields: Any) -> Object:
        """Replace top-level fields of an object, as somebody else would."""
        objects = self._objects[_name(kind, namespace, name)]
        if "spec" in fields and fields["spec"] != objects.get("spec"):
            objects["metadata"]["generation"] += 1
        return self._change(kind, objects, {**objects, **fields})

    def peek(self, kind: ResourceKind, namespace: str | None, name: str) -> Object | None:
        """The object, without a request."""
        return _copied(self._objects.get(_name(kind, namespace, name)))

    def all(self, kind: ResourceKind, namespace: str | None = None, labels: str = "") -> list[Object]:
        """Every object of a kind, by name, without a request."""
        wanted = dict(word.split("=") for word in labels.split(",") if word)
        return [
            _copied(result)
            for (plural, where, _), result in sorted(self._objects.items(), key=lambda item: item[0][2])
            if plural == kind.resource
            and namespace in (None, where)
            and wanted.items() <= (result["metadata"].get("labels") or {}).items()
        ]

    def remove(self, kind: ResourceKind, objects: Object, grace_seconds: int | None = None) -> None:
        """Delete as the server does: a pod that runs stays for its grace; what it owns goes with an owner."""
        objects = self._objects[_name(kind, objects["metadata"].get("namespace"), objects["metadata"]["name"])]
        if kind == POD and grace_seconds != 0 and _is_bound(objects):
            grace = objects["spec"].get("terminationGracePeriodSeconds", 30) if grace_seconds is None else grace_seconds
            self._end_in(kind, objects, grace)
            return
        if kind.stays_with_its_own:
            self._end_in(kind, objects, 0)
            return
        self._drop_unless_held(kind, objects)

    def end_pods(self) -> None:
        """Kubelets that live let go of pods whose deletion was asked for, and what owned them goes."""
        for pod in self.all(POD):
            if "deletionTimestamp" in pod["metadata"] and not self.node_is_dead(pod):
                self._drop_unless_held(POD, pod)
        for kind in (item for item in ALL if item.stays_with_its_own):
            for result in self.all(kind):
                if "deletionTimestamp" in result["metadata"]:
                    self._drop(kind, result)

    def peek_job(self) -> Object | None:
        """The only job, if it is still there."""
        return next(iter(self.all(RLJOB)), None)

    @property
    def version(self) -> int:
        """Grows with every change."""
        return self._version

    def events(self, reason: str | None = None) -> list[Object]:
        """Events, oldest first."""
        result = sorted(self.all(EVENT), key=lambda item: int(item["metadata"]["resourceVersion"]))
        return [item for item in result if reason in (None, item["reason"])]

    # ---- inside -----------------------------------------------------------------------------------

    def _asked(self, verb: str, kind: ResourceKind, name: str) -> None:
        if self.operator_is_dead:
            raise Killed
        self.requests.append((verb, kind.kind, name))
        if (error := self.refuse(verb, kind, name)) is not None:
            raise error

    def _written(self, result: Object) -> Object:
        self.done.append(self.requests[-1])
        self.num_writes += 1
        if self.num_writes == self.kill_after_write:
            self.operator_is_dead = True
            raise Killed
        return _copied(result)

    def _store(self, kind: ResourceKind, namespace: str | None, body: Object) -> Object:
        self._version += 1
        result = _copied(body)
        result["metadata"] |= {
            "namespace": namespace,
            "uid": f"uid-{self._version}",
            "resourceVersion": str(self._version),
            "creationTimestamp": timestamp(self._clock()),
            "generation": 1,
        }
        name = _name(kind, namespace, body["metadata"]["name"])
        self._objects[name] = result
        self.dropped.pop(name, None)  # what is known of a name is of the last object that had it
        return result

    def _change(self, kind: ResourceKind, result: Object, after: Object) -> Object:
        if after == result:
            return result
        self._version += 1
        after = _copied(after)
        after["metadata"]["resourceVersion"] = str(self._version)
        self._objects[_name(kind, result["metadata"]["namespace"], result["metadata"]["name"])] = after
        return after

    def _end_in(self, kind: ResourceKind, result: Object, grace: int) -> None:
        """A grace only ever becomes shorter, and is counted from the first deletion."""
        metadata = result["metadata"]
        before, begun = metadata.get("deletionGracePeriodSeconds"), self._clock()
        if before is not None:
            if grace >= before:
                return
            begun = seconds_of(metadata["deletionTimestamp"]) - before
        marks = {"deletionTimestamp": timestamp(begun + grace), "deletionGracePeriodSeconds": grace}
        self._change(kind, result, {**result, "metadata": {**metadata, **marks}})

    def _drop_unless_held(self, kind: ResourceKind, result: Object) -> None:
        if result["metadata"].get("finalizers"):
            self._end_in(kind, result, 0)
        else:
            self._drop(kind, result)

    def _drop(self, kind: ResourceKind, result: Object) -> None:
        metadata = result["metadata"]
        self._version += 1
        name = _name(kind, metadata.get("namespace"), metadata["name"])
        self.dropped[name] = self._objects.pop(name)
        for (plural, _, _), child in list(self._objects.items()):
            owners = child["metadata"].get("ownerReferences") or ()
            if any(owner["uid"] == metadata["uid"] for owner in owners):
                child_kind = next(item for item in ALL if item.resource == plural)
                self.remove(child_kind, child)


class LiveCache:
    """A pod cache that is never behind."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster

    def of(self, key: Key) -> tuple[Object, ...]:
        return tuple(self._cluster.all(POD, key.namespace, f"rljob.dev/job={key.name}"))

    def departed(self, key: Key, name: str) -> Object | None:
        return self._cluster.dropped.get(_name(POD, key.namespace, name))

    def note(self, child: Object) -> None:
        """The cluster knows."""


class LateCache:
    """A pod cache that learns only of what is noted, until `catch_up`."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._live = LiveCache(cluster)
        self._known: dict[str, Object] = {}

    def of(self, key: Key) -> tuple[Object, ...]:
        return tuple(self._known.values())

    def departed(self, key: Key, name: str) -> Object | None:
        return self._live.departed(key, name)

    def note(self, child: Object) -> None:
        self._known[child["metadata"]["name"]] = child

    def catch_up(self, key: Key) -> None:
        """The watch reports everything."""
        self._known = {pod["metadata"]["name"]: pod for pod in self._live.of(key)}


def _copied(value: Any) -> Any:
    """A deep copy of JSON, in half of the time that `copy.deepcopy` takes, which remembers every object."""
    if isinstance(value, dict):
        return {key: item if isinstance(item, str) else _copied(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [item if isinstance(item, str) else _copied(item) for item in value]
    return value


def _check_sent(body: Object, kind: ResourceKind, namespace: str | None) -> None:
    """A body is UTF-8 and has numbers of 64 bits, or the server answers 400."""
    json.dumps(body, ensure_ascii=False).encode()
    if any(not -(2**63) <= number < 2**63 for number in _whole_numbers(body)):
        raise Rejected("create", kind, namespace, "a number does not fit into 64 bits")


def _whole_numbers(value: Any) -> Iterator[int]:
    if isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _whole_numbers(item)
    elif isinstance(value, int):
        yield value


def _check_status(status: Object, namespace: str | None) -> None:
    """By the schema of the CRD, which is made of this type."""
    try:
        RLJobStatus.model_validate(status)
    except ValidationError as error:
        raise Rejected("patch", RLJOB, namespace, str(error)) from None


def _beside_kueue(result: Object, ours: Object) -> Object:
    """A Workload's status has two writers, and its conditions are a list by type."""
    conditions = {item["type"]: item for item in (*result.get("conditions", ()), *ours.get("conditions", ()))}
    return {**result, **ours, **({"conditions": list(conditions.values())} if conditions else {})}


def _merged(result: Any, body: Any) -> Any:
    """As server-side apply does it, of mappings."""
    if not (isinstance(result, dict) and isinstance(body, dict)):
        return body
    return {**result, **{name: _merged(result.get(name), value) for name, value in body.items()}}


def names(objects: Iterable[Object]) -> list[str]:
    """The objects' names, in order."""
    return [str(item["metadata"]["name"]) for item in objects]


def _name(kind: ResourceKind, namespace: str | None, name: str) -> Name:
    return kind.resource, namespace if kind.namespaced else None, name


def _is_bound(pod: Object) -> bool:
    """A pod without a node has nobody to end it, so the server deletes it at once."""
    status = pod.get("status") or {}
    return bool(pod["spec"].get("nodeName")) and status.get("phase") not in ("Succeeded", "Failed")
