"""Leader election by a Lease: at most one replica works.

The official client's election ends at the first lost connection, cannot give the Lease back, and writes local time as
UTC; this one stands on the six verbs.
"""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import dataclass
from datetime import UTC, datetime

from rljob_operator.cluster.api import Cluster, Object
from rljob_operator.cluster.errors import AlreadyExists, ApiError, NotFound, UpdateConflict
from rljob_operator.cluster.kinds import LEASE

logger = logging.getLogger(__name__)


class LeaseLost(Exception):
    """Another replica leads, or may believe that it does: this process must end."""


@dataclass(frozen=True)
class Holding:
    """Who holds a Lease, as one reading of it says."""

    holder: str = ""
    duration_seconds: float = 0.0
    acquired: str | None = None
    num_transitions: int = 0
    version: str = ""

    @classmethod
    def of(cls, lease: Object) -> Holding:
        """Read a Lease."""
        spec = lease.get("spec") or {}
        return cls(
            holder=spec.get("holderIdentity") or "",
            duration_seconds=float(spec.get("leaseDurationSeconds") or 0),
            acquired=spec.get("acquireTime"),
            num_transitions=int(spec.get("leaseTransitions") or 0),
            version=lease["metadata"]["resourceVersion"],
        )

    def may_be_taken(self, identity: str, unchanged_seconds: float) -> bool:
        """Whether `identity` may take or renew it, having seen it unchanged for so long.

        Only our own clock is asked: those of other machines may be off.
        """
        return self.holder in ("", identity) or unchanged_seconds >= self.duration_seconds


class Elector:
    """`acquire`, then `hold` beside the work until it raises `LeaseLost`, and `release` once the work has ended."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        namespace: str,
        name: str,
        identity: str,
        duration_seconds: int = 15,
        renew_deadline_seconds: float = 10.0,
        retry_seconds: float = 2.0,
    ) -> None:
        if not retry_seconds < renew_deadline_seconds < duration_seconds:
            raise ValueError(
                f"lease: retrySeconds ({retry_seconds:g}) < renewDeadlineSeconds ({renew_deadline_seconds:g}) <"
                f" durationSeconds ({duration_seconds}) must hold"
            )
        self._cluster = cluster
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._duration_seconds = duration_seconds
        self._renew_deadline_seconds = renew_deadline_seconds
        self._retry_seconds = retry_seconds
        self._seen = Holding()
        self._seen_at = float("-inf")

    async def acquire(self) -> None:
        """Return once this process leads."""
        while not await self._tried():
            await asyncio.sleep(self._retry_seconds * random.uniform(1.0, 1.2))
        logger.info("leading: %s holds Lease %s/%s", self._identity, self._namespace, self._name)

    async def hold(self) -> None:
        """Renew until cancelled, or until `LeaseLost`."""
        renewed_at = _now()
        while True:
            await asyncio.sleep(self._retry_seconds)
            try:
                async with asyncio.timeout_at(renewed_at + self._renew_deadline_seconds):
                    renewed = await self._tried()
            except TimeoutError:
                renewed = False
            if renewed:
                renewed_at = _now()
            elif self._seen.holder not in ("", self._identity):
                raise LeaseLost(f"{self._seen.holder} took Lease {self._namespace}/{self._name}")
            elif _now() - renewed_at >= self._renew_deadline_seconds:
                raise LeaseLost(
                    f"Lease {self._namespace}/{self._name} could not be renewed for {self._renew_deadline_seconds:g} s"
                )

    async def release(self) -> None:
        """Give the Lease back, so that a standby need not wait for it to run out."""
        if self._seen.holder != self._identity:
            return
        try:
            await self._write("", self._seen, duration_seconds=1)
        except ApiError as error:
            logger.warning("the Lease runs out by itself: %s", error)

    async def _tried(self) -> bool:
        """Whether we hold the Lease now."""
        try:
            return await self._renewed() or await self._taken()
        except (AlreadyExists, UpdateConflict):
            return False  # another replica was faster
        except ApiError as error:
            logger.warning("%s", error)
            return False

    async def _renewed(self) -> bool:
        """One request while nobody interferes: a slow API server has the less to do."""
        if self._seen.holder != self._identity:
            return False
        try:
            await self._write(self._identity, self._seen, self._duration_seconds)
        except (UpdateConflict, NotFound):
            return False  # taken, deleted, or written by a renewal whose answer was lost
        return True

    async def _taken(self) -> bool:
        lease = await self._cluster.get(LEASE, self._namespace, self._name)
        if lease is None:
            await self._create()
            return True
        self._see(Holding.of(lease))
        if not self._seen.may_be_taken(self._identity, _now() - self._seen_at):
            return False
        await self._write(self._identity, self._seen, self._duration_seconds)
        return True

    async def _create(self) -> None:
        holding = Holding()
        body = self._manifest(self._identity, holding, self._duration_seconds)
        self._see(Holding.of(await self._cluster.create(LEASE, self._namespace, body)))

    async def _write(self, identity: str, before: Holding, duration_seconds: int) -> None:
        # Applying a version that is no longer the current one is a Conflict: that is what makes the election safe.
        body = self._manifest(identity, before, duration_seconds)
        body["metadata"]["resourceVersion"] = before.version
        self._see(Holding.of(await self._cluster.apply(LEASE, self._namespace, body)))

    def _manifest(self, identity: str, before: Holding, duration_seconds: int) -> Object:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        keeps = before.holder == identity
        return {
            "metadata": {"name": self._name, "namespace": self._namespace},
            "spec": {
                "holderIdentity": identity,
                "leaseDurationSeconds": duration_seconds,
                "acquireTime": before.acquired if keeps and before.acquired else now,
                "renewTime": now,
                "leaseTransitions": before.num_transitions + (0 if keeps or not identity else 1),
            },
        }

    def _see(self, holding: Holding) -> None:
        if holding != self._seen:
            self._seen, self._seen_at = holding, _now()


def _now() -> float:
    return asyncio.get_running_loop().time()
