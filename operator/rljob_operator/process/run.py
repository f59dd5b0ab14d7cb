"""`Operator`: one replica's life: log in, become leader, lead, give the Lease back."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack

from rljob_operator.cluster.client import ApiCluster
from rljob_operator.cluster.connection import ApiConnection
from rljob_operator.cluster.lease import Elector
from rljob_operator.cluster.login import Login, own_namespace
from rljob_operator.cluster.rate_limit import RateLimit, TokenBucket
from rljob_operator.cluster.retry_policy import RetryPolicy
from rljob_operator.listening.progress import ProgressReader
from rljob_operator.process.endpoints import metrics_application, probe_application, serve_application
from rljob_operator.process.leader import Leader, Reconcile, ReconcilerContext, first_done
from rljob_operator.process.metrics import Metrics
from rljob_operator.process.settings import OperatorSettings
from rljob_operator.vocabulary.backoff import Backoff

logger = logging.getLogger(__name__)

_RELEASE_SECONDS = 3.0


class Operator:
    """`run` returns after SIGTERM or SIGINT, and raises when the process must not go on."""

    def __init__(
        self, settings: OperatorSettings, login: Login, make_reconcile: Callable[[ReconcilerContext], Reconcile]
    ) -> None:
        self._settings = settings
        self._login = login
        self._make_reconcile = make_reconcile
        self._metrics = Metrics()
        self._stop = asyncio.Event()
        self._is_logged_in = False
        self._leader: Leader | None = None

    async def run(self) -> None:
        """Serve the pages, wait for leadership, lead."""
        self._catch_signals()
        async with AsyncExitStack() as stack:
            await self._serve_pages(stack)
            connection = await stack.enter_async_context(
                ApiConnection(self._login, self._metrics.requested, self._settings.api.timeout_seconds)
            )
            # A renewal or a probe must neither wait behind a thousand creates nor be tried again out of sight.
            direct = ApiCluster(connection, RateLimit(None), RetryPolicy(attempts=1))
            self._is_logged_in = True
            if not self._settings.lease.enabled:
                await self._lead(connection, direct, None)
                return
            elector = self._elector(direct)
            try:
                if await first_done(self._stop, elector.acquire()):
                    await self._lead(connection, direct, elector)
            finally:
                await _release(elector)

    async def _lead(self, connection: ApiConnection, direct: ApiCluster, elector: Elector | None) -> None:
        api = self._settings.api
        cluster = ApiCluster(
            connection,
            RateLimit(TokenBucket(api.requests_per_second, api.burst)),
            RetryPolicy(api.attempts, Backoff(0.2, 10.0)),
            api.watch_silence_seconds,
        )
        async with ProgressReader(self._settings.progress.timeout_seconds) as reader:
            self._leader = Leader(
                self._settings, self._login, self._metrics, cluster, direct, reader, self._make_reconcile
            )
            self._metrics.led(True)
            await self._leader.run([elector.hold] if elector else [], self._stop, self._catch_signals)
            self._metrics.led(False)

    async def _serve_pages(self, stack: AsyncExitStack) -> None:
        address = self._settings.bind_address
        probes = probe_application(self._fault, self._unready)
        probe_port = await stack.enter_async_context(serve_application(probes, address, self._settings.probe_port))
        metrics = metrics_application(self._metrics.registry)
        metrics_port = await stack.enter_async_context(serve_application(metrics, address, self._settings.metrics_port))
        logger.info("probes on port %d, metrics on port %d", probe_port, metrics_port)

    def _fault(self) -> str | None:
        return self._leader.fault if self._leader else None

    def _unready(self) -> str | None:
        # A standby is ready: it does its duty by waiting, and a rolling update waits for it.
        if self._leader is not None:
            return self._leader.unready
        return None if self._is_logged_in else "not logged in yet"

    def _elector(self, cluster: ApiCluster) -> Elector:
        lease = self._settings.lease
        return Elector(
            cluster,
            namespace=lease.namespace or own_namespace(),
            name=lease.name,
            identity=f"{socket.gethostname()}-{os.getpid()}",
            duration_seconds=lease.duration_seconds,
            renew_deadline_seconds=lease.renew_deadline_seconds,
            retry_seconds=lease.retry_seconds,
        )

    def _catch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)


async def _release(elector: Elector) -> None:
    try:
        async with asyncio.timeout(_RELEASE_SECONDS):
            await elector.release()
    except TimeoutError:
        logger.warning("the Lease runs out by itself: the API server does not answer")
