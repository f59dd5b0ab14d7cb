"""A real Prometheus that scrapes the cluster's pods as the chart's PodMonitors say, and answers the dashboards."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import yaml

from charts.dashboards.__main__ import BOARDS, rendered
from charts.dashboards.board import Panel
from e2e.cluster import Cluster
from e2e.cluster.system_packages import SystemPackage, ensure_installed
from e2e.cluster.waiting import wait_until

SCRAPE_SECONDS = 2
RATE_INTERVAL = "20s"
WINDOW_SECONDS = 1800
_POD = "__meta_kubernetes_pod_"


class Prometheus:
    """Debian's `prometheus`, on this machine's loopback."""

    def __init__(self, cluster: Cluster, folder: Path, port: int) -> None:
        ensure_installed((SystemPackage("prometheus", "prometheus"),))
        self._url = f"http://127.0.0.1:{port}"
        (folder / "config.yaml").write_text(yaml.safe_dump(configuration(cluster.kubeconfig, folder)))
        (folder / "alerts.yaml").write_text(yaml.safe_dump({"groups": yaml.safe_load(rendered()["alerts.yaml"])}))
        flags = (
            f"--config.file={folder / 'config.yaml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        )
        self._log = (folder / "log").open("w")
        self._process = subprocess.Popen(["prometheus", *flags], stdout=self._log, stderr=self._log)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(30)
        self._log.close()

    def until_ready(self) -> None:
        wait_until(self._is_ready, "Prometheus", 60)

    def has_samples(self, expr: str) -> bool:
        """Whether the expression had any value lately."""
        now = time.time()
        arguments = {"query": expr, "start": now - WINDOW_SECONDS, "end": now, "step": SCRAPE_SECONDS}
        return any(series["values"] for series in self._get("query_range", arguments)["result"])

    def firing_or_known_rules(self) -> list[str]:
        """Names of the alert rules that Prometheus took."""
        return [rule["name"] for group in self._get("rules", {})["groups"] for rule in group["rules"]]

    def _get(self, path: str, arguments: dict[str, Any]) -> dict[str, Any]:
        url = f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(arguments)}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            found: dict[str, Any] = json.load(answer)["data"]
        return found

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, f"Prometheus ended: see {self._log.name}"
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=5):
                return True
        except OSError:
            return False


def configuration(kubeconfig: Path, folder: Path) -> dict[str, Any]:
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
        "kubernetes_sd_configs": [{"role": "pod", "kubeconfig_file": str(kubeconfig)}],
        "relabel_configs": relabelings,
    }
    return {
        "global": {"scrape_interval": f"{SCRAPE_SECONDS}s", "evaluation_interval": "10s"},
        "rule_files": [str(folder / "alerts.yaml")],
        "scrape_configs": [pods],
    }


def empty_panels(prometheus: Prometheus) -> list[str]:
    """Panels of any dashboard of which a query had no value lately."""
    panels = [(board.uid, panel) for board in BOARDS for panel in board.panels]
    return [f"{uid}: {panel.title}" for uid, panel in panels if not _has_data(prometheus, panel)]


def _has_data(prometheus: Prometheus, panel: Panel) -> bool:
    return all(prometheus.has_samples(_substituted(query.expr)) for query in panel.queries)


def _substituted(expr: str) -> str:
    """The expression with every variable of the board at `All`."""
    everything = {"$__rate_interval": RATE_INTERVAL, "$namespace": ".*", "$rljob": ".*"}
    for variable, value in everything.items():
        expr = expr.replace(variable, value)
    return expr
