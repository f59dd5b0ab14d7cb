"""`ChildCache`: what is known of the jobs' children in one scope; pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from rljob_api.vocabulary import keys
from rljob_operator.cluster.api import Object
from rljob_operator.vocabulary.key import Key


class PodCache(Protocol):
    """Pods as they were last seen; it is informed of those just created."""

    def of(self, key: Key) -> tuple[Object, ...]: ...
    def departed(self, key: Key, name: str) -> Object | None: ...
    def note(self, child: Object) -> None: ...


class ChildCache:
    """Objects by job, fed by lists, watch events, and the answers of creates.

    Versions are compared as numbers, which Kubernetes guarantees within one resource (KEP-5504) and etcd has
    always given.
    """

    def __init__(self, most_departed: int = 1024) -> None:
        """`most_departed`: of how many deleted children the last state is kept, over all jobs.

        The default is enough for the largest gang that is drained.
        """
        self._most_departed = most_departed
        self._by_job: dict[Key, dict[str, Object]] = {}
        self._keys: dict[tuple[str, str], Key] = {}
        """Namespace and name of a child → its job."""
        self._departed: dict[tuple[Key, str], Object] = {}
        self.version = 0
        """The version up to which everything is known."""

    def of(self, key: Key) -> tuple[Object, ...]:
        """The children of a job, by name."""
        children = self._by_job.get(key, {})
        return tuple(children[name] for name in sorted(children))

    def departed(self, key: Key, name: str) -> Object | None:
        """The last state of a child that was deleted: a pod may end and go before anybody looks at it."""
        return self._departed.get((key, name))

    def replace(self, items: Iterable[Object], version: str) -> set[Key]:
        """Take a whole list; the jobs with a child that came, changed, or went unnoticed.

        A child noted after the list was made stays.
        """
        before, self.version = self._by_job, int(version)
        self._by_job, self._keys = {}, {}
        for item in items:
            self._put(item)
        for key, children in before.items():
            for name, child in children.items():
                if version_of(child) > self.version:
                    self._put(child)
                elif name not in self._by_job.get(key, {}):
                    self._depart(key, child)
        keys_of_both, now = before.keys() | self._by_job.keys(), self._by_job
        return {key for key in keys_of_both if _versions(before.get(key, {})) != _versions(now.get(key, {}))}

    def update(self, type_: str, item: Object) -> Key | None:
        """Take a watch event; the job whose child it is about, or None when there is nothing new about one.

        A child whose label names another job than before has departed from that one.
        """
        self.version = max(self.version, version_of(item))
        if type_ == "BOOKMARK":
            return None
        before, key = self._key_of(item), job_of(item)
        if before is not None and before != key:
            if type_ != "DELETED":
                return self._move(before, item)
            key = before
        if key is None:
            return None
        known = self._by_job.get(key, {}).get(item["metadata"]["name"])
        if type_ == "DELETED":
            if known is None or version_of(known) > version_of(item):
                return None  # another of this name was noted since
            self._drop(key, item["metadata"]["name"])
            self._depart(key, item)
        else:
            if known is not None and version_of(known) >= version_of(item):
                return None  # noted before the watch reported it
            self._put(item)
        return key

    def note(self, item: Object) -> None:
        """Take the answer of a create, unless the watch is already past it: then it may even be deleted again."""
        if version_of(item) > self.version:
            self._put(item)

    def _key_of(self, item: Object) -> Key | None:
        """The job under which a child of this name is known."""
        return self._keys.get((item["metadata"]["namespace"], item["metadata"]["name"]))

    def _move(self, before: Key, item: Object) -> Key | None:
        known = self._by_job[before][item["metadata"]["name"]]
        if version_of(known) >= version_of(item):
            return None
        self._drop(before, item["metadata"]["name"])
        self._depart(before, known)
        self._put(item)
        return before

    def _put(self, item: Object) -> None:
        key = job_of(item)
        if key is not None:
            self._by_job.setdefault(key, {})[item["metadata"]["name"]] = item
            self._keys[key.namespace, item["metadata"]["name"]] = key
            self._departed.pop((key, item["metadata"]["name"]), None)

    def _drop(self, key: Key, name: str) -> None:
        children = self._by_job.get(key, {})
        children.pop(name, None)
        self._keys.pop((key.namespace, name), None)
        if not children:
            self._by_job.pop(key, None)

    def _depart(self, key: Key, item: Object) -> None:
        self._departed[key, item["metadata"]["name"]] = item
        if len(self._departed) > self._most_departed:
            del self._departed[next(iter(self._departed))]


def job_of(item: Object) -> Key | None:
    """The job that an object is a child of, by its label."""
    metadata = item["metadata"]
    name = (metadata.get("labels") or {}).get(keys.LABEL_JOB)
    return Key(metadata["namespace"], name) if name else None


def version_of(item: Object) -> int:
    """The version of an object, as a number."""
    return int(item["metadata"]["resourceVersion"])


def _versions(children: dict[str, Object]) -> set[int]:
    return {version_of(child) for child in children.values()}
