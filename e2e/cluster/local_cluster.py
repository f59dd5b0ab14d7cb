"""A Kubernetes cluster of this machine's own processes: a control plane, and nodes that are sets of namespaces."""

import json
import os
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster import access, control_plane
from e2e.cluster.cluster import KubeCluster
from e2e.cluster.commands import CommandFailed, run
from e2e.cluster.devices import device_processes
from e2e.cluster.go_programs import CLUSTER_PROGRAMS, program
from e2e.cluster.images import images
from e2e.cluster.images.image_recipes import ImageRecipe
from e2e.cluster.images.image_store import ImageStore
from e2e.cluster.images.image_transfer import copy_image
from e2e.cluster.nodes import cgroups, kwok
from e2e.cluster.nodes.node import LocalNode
from e2e.cluster.spec import ClusterSpec, RunDir, claim
from e2e.cluster.system_packages import RUNTIME, ensure_installed
from e2e.cluster.watching import ClusterWatch

FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")


@dataclass(frozen=True, slots=True)
class LocalCluster(KubeCluster):
    spec: ClusterSpec
    run_dir: RunDir

    @classmethod
    def build(cls, *more: ImageRecipe) -> None:
        require_machine()
        ensure_installed(RUNTIME)
        # images are mostly downloads and disk, programs mostly compiling
        with ThreadPoolExecutor() as pool:
            building_images = pool.submit(images.ensure_images, more)
            for name in CLUSTER_PROGRAMS:
                program(name)
            building_images.result()

    @classmethod
    def start(cls, spec: ClusterSpec, build_images: bool) -> "LocalCluster":
        """Nothing is left of a cluster that fails to come up, unless KEEP_FAILED_CLUSTER is set."""
        require_machine()
        if build_images:
            cls.build()
        cluster = cls(spec, claim(spec))
        try:
            cluster.start_all(images.node_images())
        except BaseException:
            if os.environ.get("KEEP_FAILED_CLUSTER"):
                cluster.leave_running()
            else:
                cluster.down()
            raise
        return cluster

    @classmethod
    def running(cls, index: int) -> "LocalCluster":
        folder = RunDir.of_running(index)
        return cls(ClusterSpec.from_json(folder.spec.read_text()), folder)

    def start_all(self, store: ImageStore) -> None:
        self.lay_bridge()
        with ThreadPoolExecutor() as pool:
            disks = [pool.submit(node.create, store) for node in self.nodes()]
            control_plane.start(self.spec, self.run_dir)
            for disk in disks:
                disk.result()
        for node in self.nodes():
            node.start()
        device_processes.start(self.spec, self.run_dir)
        names = {node.name for node in self.nodes()}
        watch = self.watch()
        watch.wait_until(lambda: self.ready_nodes() >= names, f"{len(names)} nodes to be Ready", timeout_seconds=240)
        watch.wait_until(self.has_default_service_account, "the default service account", timeout_seconds=60)
        if self.spec.num_kwok_nodes:
            kwok.start(self.spec, self.run_dir, self.kubectl)

    def watch(self) -> ClusterWatch:
        return ClusterWatch(self.run_dir.processes, [node.logs for node in self.nodes()], self.kubectl)

    def lay_bridge(self) -> None:
        network = self.spec.network
        run("ip", "link", "add", network.bridge, "type", "bridge")
        run("ip", "addr", "add", f"{network.host_address}/24", "dev", network.bridge)
        run("ip", "link", "set", network.bridge, "up")
        # what is sent to a pod that is gone, or was never more than an object, must not leave the machine
        for subnet in network.pod_subnets:
            run("ip", "route", "replace", "unreachable", subnet)
        FORWARDING.write_text("1")

    def remove_bridge(self) -> None:
        network = self.spec.network
        with suppress(CommandFailed):
            run("ip", "link", "del", network.bridge)
        for subnet in network.pod_subnets:
            with suppress(CommandFailed):
                run("ip", "route", "del", "unreachable", subnet)

    def nodes(self) -> list[LocalNode]:
        return [LocalNode(self.spec, self.run_dir, number) for number in self.spec.nodes]

    def node(self, number: int) -> LocalNode:
        if number not in self.spec.nodes:
            raise ValueError(f"node {number}: the cluster has nodes 1 to {self.spec.num_nodes}")
        return LocalNode(self.spec, self.run_dir, number)

    @property
    def kubeconfig(self) -> Path:
        return self.run_dir.kubeconfig(access.ADMIN)

    @property
    def shared_folder(self) -> Path:
        self.run_dir.shared.mkdir(exist_ok=True)
        return self.run_dir.shared

    @property
    def host_address(self) -> str:
        return self.spec.network.host_address

    def node_name(self, number: int) -> str:
        return self.node(number).name

    def load_images(self) -> Mapping[str, int]:
        store = images.ensure_images()
        sent: dict[str, int] = {}
        with store.running() as source:
            wanted = [image for name, image in source.images().items() if name in images.NAMES]
        for node in self.nodes():
            destination = node.containerd()
            for image in wanted:
                sent[image.name] = sent.get(image.name, 0) + copy_image(store, image, destination)
        return sent

    def load_image(self, recipe: ImageRecipe) -> None:
        store = images.ensure([recipe])
        with store.running() as source:
            image = source.images()[recipe.image]
        for node in self.nodes():
            copy_image(store, image, node.containerd())

    def load_archive(self, archive: Path) -> None:
        for node in self.nodes():
            node.containerd().import_archive(archive)

    def kill_node(self, number: int) -> None:
        self.node(number).kill()

    def restart_node(self, number: int) -> None:
        node = self.node(number)
        node.kill()
        before = self.last_report(node.name)
        node.start()
        is_back = f"{node.name} to report itself Ready"
        watch = ClusterWatch(self.run_dir.processes, [node.logs], self.kubectl)
        watch.wait_until(lambda: self.last_report(node.name) != before, is_back, timeout_seconds=240)
        watch.wait_until(lambda: node.name in self.ready_nodes(), is_back, timeout_seconds=240)

    def last_report(self, node: str) -> str:
        """When its kubelet last renewed its lease."""
        return self.kubectl("-n", "kube-node-lease", "get", "lease", node, "-o", "jsonpath={.spec.renewTime}")

    def kill_kubelet(self, number: int) -> None:
        self.node(number).kill_kubelet()

    def start_kubelet(self, number: int) -> None:
        self.node(number).start_kubelet()

    def pod_netns_exec(self, namespace: str, pod: str, *argv: str) -> str:
        result = json.loads(self.kubectl("-n", namespace, "get", "pod", pod, "-o", "json"))
        number = int(result["spec"]["nodeName"].removeprefix("node"))
        return self.node(number).pod_execute(result["metadata"]["uid"], *argv)

    def is_running(self) -> bool:
        processes = self.run_dir.processes
        return any(processes.pid(name) is not None for name in processes.names())

    def take_down(self) -> None:
        """Leaves nothing: no process, mount, namespace, link, route, control group or file."""
        processes = self.run_dir.processes
        for node in self.nodes():
            processes.stop(device_processes.process_name(node.name))
        with ThreadPoolExecutor() as pool:
            list(pool.map(LocalNode.remove, self.nodes()))
        # state is thrown away, so nothing needs to end in order; an API server takes 10 s to say goodbye
        for name in control_plane.PROCESSES:
            processes.stop(name)
        self.remove_bridge()
        shutil.rmtree(self.run_dir.root)


def require_machine() -> None:
    """Refuses before anything is built or started."""
    cgroups.hierarchies()
    if os.geteuid() != 0:
        raise RuntimeError(
            "a cluster on this machine needs root; with a docker engine, `make e2e CLUSTER=kind` does not"
        )
