"""The operator's HTTP pages: /healthz and /readyz on one port, /metrics on another."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

Problem = Callable[[], str | None]
"""Why a probe fails now, or None."""


def probe_application(unhealthy: Problem, unready: Problem) -> web.Application:
    """/healthz and /readyz: 200, or 503 with the reason."""
    return _application({"/healthz": _probe(unhealthy), "/readyz": _probe(unready)})


def metrics_application(registry: CollectorRegistry) -> web.Application:
    """/metrics, in the text format that every Prometheus reads."""

    async def metrics(request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})

    return _application({"/metrics": metrics})


@asynccontextmanager
async def serve_application(application: web.Application, address: str, port: int) -> AsyncIterator[int]:
    """Serve within this block; yields the port that was bound."""
    runner = web.AppRunner(application, handle_signals=False, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, address or None, port).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def _application(pages: dict[str, Callable[[web.Request], object]]) -> web.Application:
    application = web.Application()
    application.add_routes([web.get(path, page) for path, page in pages.items()])  # type: ignore[arg-type]
    return application


def _probe(problem: Problem) -> Callable[[web.Request], object]:
    async def page(request: web.Request) -> web.Response:
        reason = problem()
        return web.Response(status=503 if reason else 200, text=f"{reason or 'ok'}\n")

    return page
