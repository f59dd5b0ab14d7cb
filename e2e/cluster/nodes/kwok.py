"""Simulated nodes: objects that kwok keeps Ready, and whose pods run without a container."""

import json
from collections.abc import Callable
from typing import Any

from e2e.cluster import access
from e2e.cluster.go_programs import module_folder, program
from e2e.cluster.spec import ClusterSpec, RunDir
from e2e.cluster.watching import ClusterWatch

DEVICE_RESOURCE = "nvidia.com/gpu"
DEVICES_PER_NODE = 8
# what NVIDIA's feature discovery says of a node
PRODUCT = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
ANNOTATION = "kwok.x-k8s.io/node"
# what a pod must tolerate to land on a simulated node, so that pods meant to run land on a real one
TAINT = {"key": ANNOTATION, "value": "fake", "effect": "NoSchedule"}
STAGES = ("node/fast", "node/heartbeat-with-lease", "pod/fast")
# renewed at a quarter of it: a thousand nodes that each renew every ten seconds keep an API server busy
LEASE_SECONDS = 240
READY_SECONDS = 300

Kubectl = Callable[..., str]


def start(spec: ClusterSpec, run_dir: RunDir, kubectl: Kubectl) -> None:
    """Returns when all simulated nodes are Ready."""
    stages = run_dir.root / "kwok-stages.yaml"
    stages.write_text(stage_documents())
    run_dir.processes.start(
        "kwok",
        [
            program("kwok"),
            f"--kubeconfig={run_dir.kubeconfig(access.ADMIN)}",
            f"--config={stages}",
            f"--manage-nodes-with-annotation-selector={ANNOTATION}=fake",
            f"--node-lease-duration-seconds={LEASE_SECONDS}",
            f"--cidr={spec.network.fake_pod_subnet}",
            "--v=WARN",
        ],
    )
    nodes = [simulated_node(number) for number in range(spec.num_kwok_nodes)]
    kubectl("create", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": nodes}))
    all_ready = f"{spec.num_kwok_nodes} simulated nodes to be Ready"
    watch = ClusterWatch(run_dir.processes)
    watch.wait_until(lambda: num_ready(kubectl) == spec.num_kwok_nodes, all_ready, READY_SECONDS, interval_seconds=3)


def stage_documents() -> str:
    """The transitions of nodes and pods that kwok ships: a pod on a simulated node is Running at once."""
    folder = module_folder("kwok") / "kustomize/stage"
    files = [path for stage in STAGES for path in sorted((folder / stage).glob("*.yaml"))]
    return "---\n".join(path.read_text() for path in files if path.name != "kustomization.yaml")


def simulated_node(number: int) -> dict[str, Any]:
    name = f"fake-{number:04}"
    size = {"cpu": "64", "memory": "512Gi", "pods": "110", DEVICE_RESOURCE: str(DEVICES_PER_NODE)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {ANNOTATION: "fake"},
            "labels": {"type": "kwok", "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", **PRODUCT},
        },
        "spec": {"taints": [TAINT]},
        "status": {"allocatable": size, "capacity": size},
    }


def num_ready(kubectl: Kubectl) -> int:
    """By the table that the server prints: a hundredth of the nodes themselves."""
    rows = kubectl("get", "nodes", "-l", "type=kwok", "--no-headers").splitlines()
    return sum(row.split()[1] == "Ready" for row in rows)
