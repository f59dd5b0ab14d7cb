"""A real Prometheus that scrapes the cluster's pods as the chart's PodMonitors say, and answers the dashboards."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from charts.dashboards.__main__ import BOARDS, rendered
from charts.dashboards.dashboard_spec import Panel
from e2e.cluster import KubeCluster
from e2e.cluster.system_packages import SystemPackage, ensure_installed
from e2e.cluster.waiting import wait_until
from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS

SCRAPE_SECONDS = 2
RATE_INTERVAL = "20s"
WINDOW_SECONDS = 1800
_POD = "__meta_kubernetes_pod_"


@contextmanager
def scraping(cluster: KubeCluster, folder: Path) -> Iterator[Prometheus]:
    """Debian's `prometheus` on this machine's loopback, for the length of the block; it keeps its data in `folder`."""
    ensure_installed((SystemPackage("prometheus", "prometheus"),))
    (folder / "config.yaml").write_text(yaml.safe_dump(configuration(folder)))
    (folder / "alerts.yaml").write_text(yaml.safe_dump({"groups": yaml.safe_load(rendered()["alerts.yaml"])}))
    port = _free_port()
    flags = (
        f"--config.file={folder / 'config.yaml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    )
    with _finding_pods(cluster, folder / "pods.json"), (folder / "log").open("w") as log:
        process = subprocess.Popen(["setpriv", "--pdeathsig", "TERM", "prometheus", *flags], stdout=log, stderr=log)
        try:
            running = Prometheus(f"http://127.0.0.1:{port}")
            wait_until(lambda: _is_up(process, running), f"Prometheus, which writes to {log.name}", 60)
            yield running
        finally:
            process.terminate()
            process.wait(TEST_TIMEOUT_SECONDS)


class Prometheus:
    """A Prometheus that answers queries."""

    def __init__(self, url: str) -> None:
        self._url = url

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=5):
                return True
        except OSError:
            return False

    def has_samples(self, expr: str) -> bool:
        """Whether the expression had any value lately."""
        now = time.time()
        arguments = {"query": expr, "start": now - WINDOW_SECONDS, "end": now, "step": SCRAPE_SECONDS}
        return any(series["values"] for series in self._get("query_range", arguments)["result"])

    def alert_rules(self) -> dict[str, str]:
        """The alert rules that Prometheus took, and how their last evaluation went: `ok`, `err` or `unknown`."""
        groups = self._get("rules", {})["groups"]
        return {rule["name"]: rule["health"] for group in groups for rule in group["rules"]}

    def _get(self, path: str, arguments: dict[str, Any]) -> dict[str, Any]:
        url = f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(arguments)}"
        with urllib.request.urlopen(url, timeout=TEST_TIMEOUT_SECONDS) as answer:
            result: dict[str, Any] = json.load(answer)["data"]
        return result


def configuration(folder: Path) -> dict[str, Any]:
    """What the Prometheus operator would make of the chart's PodMonitors."""
    relabelings = [
        {
            "source_labels": [f"{_POD}label_app_kubernetes_io_name", f"{_POD}label_app_kubernetes_io_managed_by"],
            "regex": "rljob;.*|.*;rljob-operator",
            "action": "keep",
        },
        {"source_labels": [f"{_POD}container_port_name"], "regex": "(buffer-)?metrics", "action": "keep"},
        {"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"},
        {"source_labels": [f"{_POD}name"], "target_label": "pod"},
        {"source_labels": [f"{_POD}label_rljob_dev_job"], "target_label": "rljob"},
        {"source_labels": [f"{_POD}label_rljob_dev_group"], "target_label": "group"},
        {"source_labels": [f"{_POD}label_rljob_dev_host_index"], "target_label": "host"},
        {"source_labels": [f"{_POD}label_rljob_dev_attempt"], "target_label": "attempt"},
    ]
    pods = {
        "job_name": "rljob",
        "honor_labels": True,
        "file_sd_configs": [{"files": [str(folder / "pods.json")]}],
        "relabel_configs": relabelings,
    }
    return {
        "global": {"scrape_interval": f"{SCRAPE_SECONDS}s", "evaluation_interval": "10s"},
        "rule_files": [str(folder / "alerts.yaml")],
        "scrape_configs": [pods],
    }


def targets(pods: Iterable[Any]) -> list[dict[str, Any]]:
    """One target a port, with the labels of Prometheus' own discovery, which Debian builds without Kubernetes."""
    return [
        {"targets": [f"{pod['status']['podIP']}:{port['containerPort']}"], "labels": _labels(pod, port)}
        for pod in pods
        if pod["status"].get("podIP") and pod["status"]["phase"] == "Running"
        for container in (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"])
        for port in container.get("ports", ())
    ]


def _labels(pod: Any, port: Any) -> dict[str, str]:
    metadata = pod["metadata"]
    labels = {f"label_{_word(name)}": value for name, value in metadata.get("labels", {}).items()}
    known = {"name": metadata["name"], "container_port_name": port.get("name", ""), **labels}
    return {
        "__meta_kubernetes_namespace": metadata["namespace"],
        **{f"{_POD}{name}": value for name, value in known.items()},
    }


def _word(label: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_]", "_", label)


@contextmanager
def _finding_pods(cluster: KubeCluster, file: Path) -> Iterator[None]:
    """Keeps the file of targets as the cluster's pods are."""
    stop = threading.Event()

    def follow() -> None:
        while not stop.wait(SCRAPE_SECONDS):
            pods = json.loads(cluster.kubectl("get", "pods", "--all-namespaces", "-o", "json"))["items"]
            fresh = file.with_suffix(".new")
            fresh.write_text(json.dumps(targets(pods)))
            fresh.replace(file)

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _is_up(process: subprocess.Popen[bytes], running: Prometheus) -> bool:
    assert process.poll() is None, "Prometheus ended"
    return running.is_ready()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def empty_panels(prometheus: Prometheus) -> list[str]:
    """Panels of any dashboard of which a query had no value lately."""
    panels = [(dashboard.uid, panel) for dashboard in BOARDS for panel in dashboard.panels]
    return [f"{uid}: {panel.title}" for uid, panel in panels if not _has_data(prometheus, panel)]


def _has_data(prometheus: Prometheus, panel: Panel) -> bool:
    return all(prometheus.has_samples(_substituted(query.expr)) for query in panel.queries)


def _substituted(expr: str) -> str:
    """The expression with every variable of the board at `All`."""
    everything = {"$__rate_interval": RATE_INTERVAL, "$namespace": ".*", "$rljob": ".*"}
    for variable, value in everything.items():
        expr = expr.replace(variable, value)
    return expr
