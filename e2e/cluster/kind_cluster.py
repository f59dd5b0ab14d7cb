"""A test cluster where there is a docker engine: kind's nodes are containers."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster import access
from e2e.cluster.cluster import KubeCluster
from e2e.cluster.commands import run
from e2e.cluster.devices import device_processes
from e2e.cluster.go_programs import KUBERNETES_VERSION, program
from e2e.cluster.images import version_before
from e2e.cluster.images.builders import Docker, has_docker_engine
from e2e.cluster.images.image_recipes import RECIPES, ImageRecipe
from e2e.cluster.nodes import kwok
from e2e.cluster.spec import ClusterSpec, RunDir, claim
from e2e.cluster.waiting import wait_until

NODE_IMAGE = f"kindest/node:{KUBERNETES_VERSION}"
DEVICE_PLUGINS = "/var/lib/kubelet/device-plugins"


@dataclass(frozen=True, slots=True)
class KindCluster(KubeCluster):
    spec: ClusterSpec
    run_dir: RunDir

    @classmethod
    def build(cls, *more: ImageRecipe) -> None:
        require_engine()
        for name in ("kubectl", "helm", "kind"):
            program(name)
        for recipe in (*RECIPES, *version_before.image_recipes(), *more):
            Docker().build(recipe)

    @classmethod
    def start(cls, spec: ClusterSpec, build_images: bool) -> "KindCluster":
        require_engine()
        if build_images:
            cls.build()
        cluster = cls(spec, claim(spec))
        try:
            cluster.start_all()
        except BaseException:
            cluster.down()
            raise
        return cluster

    @classmethod
    def running(cls, index: int) -> "KindCluster":
        folder = RunDir.of_running(index)
        return cls(ClusterSpec.from_json(folder.spec.read_text()), folder)

    def start_all(self) -> None:
        for number in self.spec.nodes:
            self.run_dir.device_plugins(f"node{number}").mkdir(parents=True)
        self.run_dir.shared.mkdir()
        config = yaml.safe_dump(kind_config(self.spec, self.run_dir))
        name = ("--name", self.name, "--image", NODE_IMAGE, "--kubeconfig", self.kubeconfig)
        run(program("kind"), "create", "cluster", *name, "--wait", "180s", "--config", "-", input=config)
        self.load_images()
        device_processes.start(self.spec, self.run_dir)
        wait_until(self.has_default_service_account, "the default service account", timeout_seconds=60)
        if self.spec.num_kwok_nodes:
            kwok.start(self.spec, self.run_dir, self.kubectl)

    @property
    def name(self) -> str:
        return self.spec.network.bridge

    def node_name(self, number: int) -> str:
        """kind's own: the first worker has no number."""
        return f"{self.name}-worker{number if number > 1 else ''}"

    @property
    def host_address(self) -> str:
        """The gateway of the network on which kind puts every node."""
        return host_address(json.loads(run("docker", "network", "inspect", "kind")))

    @property
    def kubeconfig(self) -> Path:
        return self.run_dir.kubeconfig(access.ADMIN)

    @property
    def shared_folder(self) -> Path:
        return self.run_dir.shared

    def load_images(self) -> Mapping[str, int]:
        for image in (*(recipe.image for recipe in RECIPES), *version_before.IMAGES):
            run(program("kind"), "load", "docker-image", "--name", self.name, image)
        return {}

    def load_image(self, recipe: ImageRecipe) -> None:
        Docker().build(recipe)
        run(program("kind"), "load", "docker-image", "--name", self.name, recipe.image)

    def load_archive(self, archive: Path) -> None:
        run(program("kind"), "load", "image-archive", "--name", self.name, archive)

    def kill_node(self, number: int) -> None:
        run("docker", "kill", self.node_name(number))

    def restart_node(self, number: int) -> None:
        node = self.node_name(number)
        run("docker", "restart", "--time", "0", node)
        wait_until(lambda: node in self.ready_nodes(), f"{node} to be Ready", timeout_seconds=180)

    def kill_kubelet(self, number: int) -> None:
        # stopped, as the node's init would start one that is killed at once
        self.execute(number, "systemctl", "stop", "kubelet")

    def start_kubelet(self, number: int) -> None:
        self.execute(number, "systemctl", "start", "kubelet")

    def execute(self, number: int, *argv: str) -> str:
        return run("docker", "exec", self.node_name(number), *argv)

    def pod_netns_exec(self, namespace: str, pod: str, *argv: str) -> str:
        result = json.loads(self.kubectl("-n", namespace, "get", "pod", pod, "-o", "json"))
        number = int(result["spec"]["nodeName"].removeprefix(f"{self.name}-worker") or 1)
        sandbox = self.execute(
            number, "crictl", "pods", "-q", "--label", f"io.kubernetes.pod.uid={result['metadata']['uid']}"
        )
        inspected = json.loads(self.execute(number, "crictl", "inspectp", sandbox.split()[0]))
        return self.execute(number, "nsenter", "--net", "--target", str(inspected["info"]["pid"]), *argv)

    def is_running(self) -> bool:
        return self.name in run(program("kind"), "get", "clusters").split()

    def take_down(self) -> None:
        for name in self.run_dir.processes.names():
            self.run_dir.processes.stop(name)
        run(program("kind"), "delete", "cluster", "--name", self.name)
        shutil.rmtree(self.run_dir.root, ignore_errors=True)


def host_address(networks: list[dict[str, Any]]) -> str:
    """The IPv4 gateway that `docker network inspect` tells of."""
    gateways = [item.get("Gateway", "") for network in networks for item in network["IPAM"]["Config"]]
    return next(gateway for gateway in gateways if "." in gateway)


def kind_config(spec: ClusterSpec, run_dir: RunDir) -> dict[str, Any]:
    """One node for the control plane, and those that tests count."""
    return {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "nodes": [{"role": "control-plane"}, *(worker(run_dir, number) for number in spec.nodes)],
        "kubeadmConfigPatches": [yaml.safe_dump(failure_times(spec))],
    }


def worker(run_dir: RunDir, number: int) -> dict[str, Any]:
    shared = str(run_dir.shared)
    devices = {"hostPath": str(run_dir.device_plugins(f"node{number}")), "containerPath": DEVICE_PLUGINS}
    return {"role": "worker", "extraMounts": [devices, {"hostPath": shared, "containerPath": shared}]}


def failure_times(spec: ClusterSpec) -> dict[str, Any]:
    """After how long a silent node is NotReady, and its pods are evicted."""
    toleration = str(spec.eviction_seconds)
    tolerations = ("default-not-ready-toleration-seconds", "default-unreachable-toleration-seconds")
    return {
        "kind": "ClusterConfiguration",
        "apiServer": {"extraArgs": dict.fromkeys(tolerations, toleration)},
        "controllerManager": {"extraArgs": {"node-monitor-grace-period": f"{spec.effective_grace_seconds}s"}},
    }


def require_engine() -> None:
    if not has_docker_engine():
        raise RuntimeError(
            "CLUSTER=kind needs a docker engine, and `docker info` finds none: start one, or leave CLUSTER out for a "
            "cluster of this machine's own processes (Linux, root)"
        )
