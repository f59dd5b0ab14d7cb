"""The operator as a process of this machine, and what it uses, says and counts."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

from e2e.cluster import KubeCluster
from e2e.cluster.waiting import wait_until

Labels = tuple[tuple[str, str], ...]
Samples = Mapping[tuple[str, Labels], float]
"""Name and labels of a Prometheus series to its value."""


@dataclass(frozen=True)
class Usage:
    """What a process has used so far."""

    cpu_seconds: float
    resident_bytes: int
    private_bytes: int
    peak_resident_bytes: int

    @classmethod
    def of(cls, pid: int) -> Usage:
        ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        pages = kilobytes(Path(f"/proc/{pid}/smaps_rollup").read_text())
        private = pages["Private_Clean"] + pages["Private_Dirty"]
        peak = kilobytes(Path(f"/proc/{pid}/status").read_text())["VmHWM"]
        cpu_seconds = sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
        return cls(cpu_seconds, pages["Rss"] * 1024, private * 1024, peak * 1024)


def kilobytes(text: str) -> dict[str, int]:
    return {name: int(value) for name, value in re.findall(r"^(\w+):\s+(\d+) kB", text, re.M)}


@dataclass(frozen=True)
class OperatorProcess:
    """The operator as a process, and what it says of itself."""

    pid: int
    metrics_url: str

    def samples(self) -> Samples:
        with urllib.request.urlopen(self.metrics_url, timeout=30) as answer:
            return parse(answer.read().decode())

    def usage(self) -> Usage:
        return Usage.of(self.pid)


def parse(text: str) -> Samples:
    families = text_string_to_metric_families(text)
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def grown(before: Samples, after: Samples, name: str) -> dict[Labels, float]:
    """By labels, how much a counter grew."""
    result = {key: value - before.get(key, 0.0) for key, value in after.items() if key[0] == name}
    return {labels: value for (_, labels), value in result.items() if value}


@contextmanager
def operator_process(cluster: KubeCluster, folder: Path, **more: Any) -> Iterator[OperatorProcess]:
    """Runs until the block ends; `more` are settings beyond the defaults."""
    probes, metrics = free_port(), free_port()
    settings: dict[str, Any] = {
        "bindAddress": "127.0.0.1",
        "probePort": probes,
        "metricsPort": metrics,
        "lease": {"enabled": False},
        **more,
    }
    config = folder / "operator.yaml"
    config.write_text(yaml.safe_dump(settings))
    command = [sys.executable, "-m", "rljob_operator", f"--config={config}", f"--kubeconfig={cluster.kubeconfig}"]
    with (folder / "operator.log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            wait_until(lambda: is_ready(process, probes, folder), "the operator to be ready", timeout_seconds=120)
            yield OperatorProcess(process.pid, f"http://127.0.0.1:{metrics}/metrics")
        finally:
            process.send_signal(signal.SIGTERM)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_ready(process: subprocess.Popen[bytes], port: int, folder: Path) -> bool:
    if process.poll() is not None:
        said = (folder / "operator.log").read_text()[-3000:]
        raise RuntimeError(f"the operator ended with {process.returncode}:\n{said}")
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
