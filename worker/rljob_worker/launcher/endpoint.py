"""One HTTP port per pod: `/metrics` for Prometheus, `/healthz` for the liveness probe, `/progress` for the operator."""

import json
import socket
import threading
from collections.abc import Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from rljob_api.vocabulary import keys
from rljob_worker.launcher.pod_state import PodState
from rljob_worker.metrics.names import prometheus_name
from rljob_worker.process.ports import named_port

# field of /progress -> gauge
_PROGRESS = {
    "step": "rljob_step",
    "totalSteps": "rljob_total_steps",
    "checkpointStep": "rljob_checkpoint_step",
    "attempt": "rljob_attempt",
}


class PodStateCollector(Collector):
    """The pod's own state, and every worker's latest values as gauges labelled with its rank."""

    def __init__(self, pod_state: PodState) -> None:
        self._pod_state = pod_state

    def collect(self) -> Iterator[GaugeMetricFamily]:
        yield GaugeMetricFamily("rljob_workers_alive", "workers of this pod that run", value=self._pod_state.num_alive)
        progress = self._pod_state.progress()
        for field, name in _PROGRESS.items():
            if isinstance(progress.get(field), int):
                yield GaugeMetricFamily(name, f"{field} of /progress", value=progress[field])
        yield from self._worker_gauges()

    def _worker_gauges(self) -> Iterable[GaugeMetricFamily]:
        gauges: dict[str, GaugeMetricFamily] = {}
        taken = {"rljob_workers_alive", *_PROGRESS.values()}
        series: set[tuple[str, ...]] = set()
        for rank, values in sorted(self._pod_state.metrics().items()):
            for name, value in sorted(values.items()):
                spelt = prometheus_name(name)
                labels = ("rank", *(label for label, _ in spelt.labels))
                texts = (str(rank), *(text for _, text in spelt.labels))
                gauge = gauges.setdefault(spelt.family, GaugeMetricFamily(spelt.family, name, labels=labels))
                # names that differ may be spelt alike here; Prometheus refuses a page that says a thing twice
                if spelt.family in taken or gauge._labelnames != labels or (spelt.family, *texts) in series:
                    continue
                series.add((spelt.family, *texts))
                gauge.add_metric(texts, value)
        return [gauge for gauge in gauges.values() if gauge.samples]


class _Handler(BaseHTTPRequestHandler):
    server: "Endpoint"

    def do_GET(self) -> None:
        pages = {"/metrics": self._metrics, "/healthz": self._healthz, "/progress": self._progress}
        page = pages.get(self.path.partition("?")[0])
        if page is None:
            self._answer(404, "text/plain", b"try /metrics, /healthz or /progress\n")
        else:
            page()

    def _metrics(self) -> None:
        self._answer(200, CONTENT_TYPE_PLAIN_0_0_4, generate_latest(self.server.registry))

    def _healthz(self) -> None:
        fault = self.server.pod_state.fault()
        self._answer(503 if fault else 200, "text/plain", (fault or "ok").encode() + b"\n")

    def _progress(self) -> None:
        self._answer(200, "application/json", json.dumps(self.server.pod_state.progress()).encode() + b"\n")

    def _answer(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Probes come every few seconds; the log is for the workers."""


CLOSE_SECONDS = 0.05
"""How long the end of a pod waits for its endpoint at most."""


class Endpoint(ThreadingHTTPServer):
    """Serves the state of a pod until `close()`; `port` is the one really bound."""

    daemon_threads = True

    def __init__(self, pod_state: PodState, port: int) -> None:
        """Listen on every address, or on this machine only when the system chooses the port (0)."""
        self.pod_state = pod_state
        self.registry = CollectorRegistry()
        self.registry.register(PodStateCollector(pod_state))
        super().__init__(("", port), _Handler, bind_and_activate=False)
        self.socket.close()
        with named_port("the launcher's metrics", port, keys.ENV_METRICS_PORT):
            self.socket = _listening_socket(port)
        self.port: int = self.socket.getsockname()[1]
        self._thread = threading.Thread(target=self.serve_forever, args=(CLOSE_SECONDS,), name="endpoint", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop answering and give the port back."""
        self.shutdown()
        self._thread.join()
        self.server_close()


def _listening_socket(port: int) -> socket.socket:
    if port == 0:
        return socket.create_server(("127.0.0.1", 0))
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))
