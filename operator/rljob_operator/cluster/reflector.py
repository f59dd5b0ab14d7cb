"""`Reflector`: a cache of the jobs' children that notices everything, also what was deleted while nobody watched."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from rljob_operator.cluster.api import Cluster, Object
from rljob_operator.cluster.kinds import Kind
from rljob_operator.key import Key


class Reflector:
    """LIST in pages and replace the cache → WATCH with bookmarks → LIST again every `relist_seconds` and when the watch
    is too old.

    Call `run` as a task.  `on_change` is called with the job whose children changed: those named by the label
    `rljob.dev/job` in the child's namespace.
    """

    def __init__(
        self,
        cluster: Cluster,
        kind: Kind,
        namespaces: Sequence[str],
        labels: str,
        on_change: Callable[[Key], None],
        *,
        relist_seconds: float = 300.0,
    ) -> None: ...

    def of(self, key: Key) -> tuple[Object, ...]:
        """The children of a job, by name.  Do not change them: they are the cache's own."""
        raise NotImplementedError

    def note(self, child: Object) -> None:
        """Take the answer of a create into the cache, ahead of the watch, so that the next reconcile sees it."""
        raise NotImplementedError

    @property
    def synced(self) -> bool:
        """Whether the first LIST is done; until then `of` knows nothing."""
        raise NotImplementedError

    async def wait_synced(self) -> None:
        """Return once `synced`."""
        raise NotImplementedError

    @property
    def last_activity(self) -> float:
        """When anything, bookmarks included, last arrived, on the event loop's clock."""
        raise NotImplementedError

    async def run(self) -> None:
        """Reflect until cancelled."""
        await asyncio.Event().wait()
