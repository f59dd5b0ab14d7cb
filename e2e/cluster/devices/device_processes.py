"""Device plugins of the nodes that are to have devices: processes of the host."""

import sys
from pathlib import Path

from e2e.cluster.spec import ClusterSpec, RunDir

CHECKOUT = Path(__file__).parents[3]


def start(spec: ClusterSpec, run_dir: RunDir) -> None:
    """They register as soon as the node's kubelet listens, and again when it starts anew."""
    for node, counts in spec.devices.items():
        devices = [f"{resource}={count}" for resource, count in counts.items()]
        argv: list[str | Path] = [
            sys.executable,
            "-m",
            "e2e.cluster.devices.device_plugin",
            run_dir.device_plugins(node),
            *devices,
        ]
        run_dir.processes.start(process_name(node), argv, {"PYTHONPATH": str(CHECKOUT)})


def process_name(node: str) -> str:
    return f"{node}-devices"
