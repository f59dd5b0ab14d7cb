"""kopf, as a thin engine: its events about RLJobs name a job to look at, and nothing more."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import kopf

from rljob_api.v1alpha1.status import ENDED_PHASES
from rljob_api.vocabulary import keys
from rljob_operator.cluster.api import Cluster, list_pages
from rljob_operator.cluster.kinds import RLJOB
from rljob_operator.cluster.login import ApiCredentials, Login, api_credentials
from rljob_operator.vocabulary.key import Key


@dataclass(frozen=True)
class JobChange:
    """What an event reports of a job."""

    key: Key
    version: int
    is_deleted: bool
    has_ended: bool
    """Whether it is Succeeded or Failed: there is little to do for it."""


OnEvent = Callable[[JobChange], None]


class _Pauses:
    """Growing pauses between attempts, for ever: an API server that is away must not end the operator."""

    def __iter__(self) -> Iterator[float]:
        return itertools.chain((1.0, 1.0, 2.0, 3.0, 5.0, 8.0, 13.0), itertools.repeat(20.0))


def kopf_registry(login: Login, on_event: OnEvent) -> kopf.OperatorRegistry:
    """One handler, of events: any other would make kopf write finalizers or annotations."""
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    async def log_in(**_: Any) -> kopf.ConnectionInfo:
        return _connection_info(await api_credentials(login))

    @kopf.on.event(keys.GROUP, keys.VERSION, keys.PLURAL, registry=registry)
    async def tell(type: str | None, body: kopf.Body, **_: Any) -> None:
        on_event(change_of(body, is_deleted=type == "DELETED"))

    return registry


def change_of(body: Mapping[str, Any], is_deleted: bool = False) -> JobChange:
    """What an RLJob says of itself."""
    metadata = body["metadata"]
    key, version = Key(metadata["namespace"], metadata["name"]), int(metadata["resourceVersion"])
    return JobChange(key, version, is_deleted, (body.get("status") or {}).get("phase") in ENDED_PHASES)


class NothingToCompare(kopf.DiffBaseStorage):
    """What kopf would copy of every object at every event, to say what of it changed: nobody asks."""

    def build(self, *, body: kopf.Body, extra_fields: Iterable[Any] | None = None) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        raise AssertionError("no handler of ours makes kopf store anything")


def kopf_settings() -> kopf.OperatorSettings:
    """No state in the cluster, no silent watch, no giving up."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.peering.standalone = True
    # a job may have megabytes, which as Python's objects are twenty times as many, and kopf holds two pages at a time
    settings.watching.chunk_size = 5
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 330
    settings.watching.connect_timeout = 10
    settings.watching.inactivity_timeout = 90
    settings.networking.request_timeout = 30
    # kopf keeps the last state of an object until its worker has been idle for so long: at a start that is every job
    settings.queueing.idle_timeout = 0.1
    settings.networking.error_backoffs = _Pauses()
    settings.process.ultimate_exiting_timeout = 20
    # Nothing is stored, but should kopf ever store something, it is ours.
    settings.persistence.finalizer = f"{keys.GROUP}/kopf"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=f"kopf.{keys.GROUP}")
    settings.persistence.diffbase_storage = NothingToCompare()
    return settings


async def run_kopf(login: Login, namespaces: Sequence[str], on_event: OnEvent, started: Callable[[], None]) -> None:
    """Run until cancelled; `started` is called once kopf's tasks exist and it has taken over the signals.

    When kopf ends, it cancels every task that was born after it began.
    """
    ours = asyncio.all_tasks()
    tasks = await kopf.spawn_tasks(
        registry=kopf_registry(login, on_event),
        settings=kopf_settings(),
        # kopf's own is made of the user's name, which a container's number need not have
        identity=keys.MANAGED_BY_VALUE,  # type: ignore[arg-type]
        standalone=True,
        clusterwide=not namespaces,
        namespaces=namespaces,
    )
    started()
    await kopf.run_tasks(tasks, ignored=ours)


def _connection_info(result: ApiCredentials) -> kopf.ConnectionInfo:
    return kopf.ConnectionInfo(
        server=result.server,
        ca_path=result.ca_path,
        insecure=not result.verify,
        scheme=result.scheme,
        token=result.token,
        certificate_path=result.certificate_path,
        private_key_path=result.private_key_path,
    )


async def announce_jobs(cluster: Cluster, namespaces: Sequence[str], on_event: OnEvent) -> None:
    """Tell of every job, of those that live as soon as their page is there, and of the others at the end.

    A page takes as long as kopf takes over a few jobs, of which it makes a task each.  Raises ClusterError.
    """
    ended: list[JobChange] = []
    for namespace in namespaces or (None,):
        async for page in list_pages(cluster, RLJOB, namespace):
            for news in map(change_of, page.items):
                if news.has_ended:
                    ended.append(news)
                else:
                    on_event(news)
    for news in ended:
        on_event(news)
