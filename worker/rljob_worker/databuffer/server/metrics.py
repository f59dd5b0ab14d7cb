"""The data buffer's own numbers, for Prometheus and for a liveness probe. Labels are edge names: few and bounded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST


class BufferMetrics:
    """Counters of one data buffer in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter = self._counter
        self._rows = counter("rows", "Rows that workers of this host put, by edge")
        self._bytes = counter("put_bytes", "Bytes that workers of this host put, by edge")
        self._received = counter("received_bytes", "Bytes that came from other data buffers, by edge")
        self._producer = counter("producer_wait_seconds", "Seconds in which consumers waited for producers, by edge")
        self._transfer = counter("transfer_seconds", "Seconds from the last producer's seal to rows in place, by edge")
        self._gather = counter("gather_seconds", "Seconds spent gathering rows for other data buffers, by edge")
        self._spilled = counter("spilled_bytes", "Bytes that found no room in the arena and went to disk, by edge")
        self._refused = Counter(
            "rljob_buffer_refused_calls",
            "Calls of peers and readers that were refused or failed, by class of the error",
            ["kind"],
            registry=self.registry,
        )
        self._resident = self._gauge("resident_bytes", "Bytes of the arena in use, by what they are kept for")
        self._capacity = self._gauge("capacity_bytes", "Bytes of the arena, by what they are kept for")
        self._on_disk = Gauge("rljob_buffer_spill_used_bytes", "Bytes of the spill file in use", registry=self.registry)
        self._limit = Gauge("rljob_buffer_spill_limit_bytes", "Bytes of the spill file", registry=self.registry)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"rljob_buffer_{name}", text, ["edge"], registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"rljob_buffer_{name}", text, ["of"], registry=self.registry)

    def watch(self, of: str, resident: Callable[[], float], capacity: int) -> None:
        """Read the use of the arena's part for `of`, rows or weights, whenever somebody scrapes."""
        self._resident.labels(of).set_function(resident)
        self._capacity.labels(of).set(capacity)

    def watch_disk(self, used: Callable[[], float], limit: int) -> None:
        """Read the use of the spill file whenever somebody scrapes."""
        self._on_disk.set_function(used)
        self._limit.set(limit)

    def spilled(self, edge: str, num_bytes: int) -> None:
        self._spilled.labels(edge).inc(num_bytes)

    def put(self, edge: str, rows: int, num_bytes: int) -> None:
        self._rows.labels(edge).inc(rows)
        self._bytes.labels(edge).inc(num_bytes)

    def got(self, edge: str, timing: Mapping[str, float], remote_bytes: int) -> None:
        self._received.labels(edge).inc(remote_bytes)
        self._producer.labels(edge).inc(timing.get("producer_seconds", 0.0))
        self._transfer.labels(edge).inc(timing.get("transfer_seconds", 0.0))

    def refused(self, kind: str) -> None:
        self._refused.labels(kind).inc()

    def gathered(self, edge: str, seconds: float) -> None:
        self._gather.labels(edge).inc(seconds)


class MetricsServer:
    """`/metrics` and `/healthz` on one port; port 0 is chosen by the system."""

    def __init__(self, metrics: BufferMetrics, host: str, port: int) -> None:
        handler = type("Handler", (_Handler,), {"registry": metrics.registry})
        self._server = ThreadingHTTPServer((host, port), handler)
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="metrics", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    registry: CollectorRegistry

    def do_GET(self) -> None:
        if self.path.startswith("/metrics"):
            self._answer(generate_latest(self.registry), CONTENT_TYPE_LATEST)
        elif self.path.startswith("/healthz"):
            self._answer(b"ok\n", "text/plain")
        else:
            self.send_error(404)

    def _answer(self, body: bytes, content_type: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Scrapes are not news."""
