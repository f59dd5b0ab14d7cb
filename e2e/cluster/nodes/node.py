"""One node of the cluster: a tree of processes in namespaces of its own, with a cable to the bridge."""

import json
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import yaml

from e2e.cluster.commands import CommandFailed, run
from e2e.cluster.go_programs import program
from e2e.cluster.images import containerd
from e2e.cluster.images.base_image import PAUSE_IMAGE
from e2e.cluster.images.containerd import Containerd
from e2e.cluster.images.image_store import ImageStore
from e2e.cluster.network import ClusterNetwork, node_name
from e2e.cluster.nodes import cgroups, node_config
from e2e.cluster.processes import only_child
from e2e.cluster.spec import ClusterSpec, RunDir
from e2e.cluster.watching import ClusterWatch, NodeLogs

INIT = Path(__file__).with_name("node-init.sh")
NAMESPACES = ("--net", "--mount", "--pid", "--uts", "--ipc")


@dataclass(frozen=True, slots=True)
class LocalNode:
    spec: ClusterSpec
    run_dir: RunDir
    number: int

    @property
    def name(self) -> str:
        return node_name(self.number)

    @property
    def network(self) -> ClusterNetwork:
        return self.spec.network

    @property
    def folder(self) -> Path:
        return self.run_dir.node(self.name)

    @property
    def logs(self) -> NodeLogs:
        return NodeLogs(self.name, self.folder / "var/log")

    def create(self, images: ImageStore) -> None:
        """The node's disk: its images, its configuration."""
        var = self.folder / "var"
        for path in ("lib/kubelet", "lib/cni", "log", "tmp"):
            (var / path).mkdir(parents=True)
        (var / "run").symlink_to("/run")
        images.clone(var / "lib/containerd")
        cni = self.folder / "cni"
        cni.mkdir()
        (cni / "10-pods.conflist").write_text(node_config.pod_network(self.network, self.number))
        (self.folder / "containerd.toml").write_text(containerd.node_config(PAUSE_IMAGE, cni))
        proxy = node_config.kube_proxy(self.network, self.number, self.run_dir.kubeconfig("proxy"))
        (self.folder / "kube-proxy.yaml").write_text(yaml.safe_dump(proxy))
        (self.folder / "kubelet.yaml").write_text(yaml.safe_dump(node_config.kubelet(self.network, self.number)))

    def start(self) -> None:
        """Power on. The process that is recorded is the node's power switch: everything in it ends with it."""
        cgroups.create(self.network.cgroup(self.number))
        self.logs.forget_ends()
        command: list[str | Path] = ["unshare", *NAMESPACES, "--fork", "--kill-child", "bash", INIT]
        switch = self.run_dir.processes.start(self.name, command, self.init_environment())
        watch = ClusterWatch(self.run_dir.processes)
        init = watch.wait_until(lambda: only_child(switch), f"the first process of {self.name}", timeout_seconds=60)
        cgroups.add(self.network.cgroup(self.number), init)
        self.lay_cable(init)

    def init_environment(self) -> dict[str, str]:
        others = [other for other in self.spec.nodes if other != self.number]
        routes = (f"{self.network.node_pod_subnet(n)}={self.network.node_address(n)}" for n in others)
        return {
            "NODE": self.name,
            "NODE_DIR": str(self.folder),
            "ADDRESS": self.network.node_address(self.number),
            "GATEWAY": self.network.host_address,
            "ROUTES": " ".join(routes),
            "KUBELET": str(program("kubelet")),
            "KUBE_PROXY": str(program("kube-proxy")),
            "KUBECONFIG": str(self.run_dir.kubeconfig(self.name)),
        }

    def lay_cable(self, init: int) -> None:
        link, mac = self.network.node_link(self.number), self.network.node_mac_address(self.number)
        peer = ("peer", "name", "eth0", "address", mac, "netns", str(init))
        run("ip", "link", "add", link, "type", "veth", *peer)
        run("ip", "link", "set", link, "master", self.network.bridge, "up")
        subnet = self.network.node_pod_subnet(self.number)
        run("ip", "route", "replace", subnet, "via", self.network.node_address(self.number))

    def kill(self) -> None:
        """Power off: nothing in the node gets to say goodbye."""
        self.run_dir.processes.stop(self.name)
        with suppress(CommandFailed):  # the cable went with the namespace, or goes now
            run("ip", "link", "del", self.network.node_link(self.number))
        # kubelet would try to make sense of the old pods' groups for half a minute
        cgroups.remove(self.network.cgroup(self.number))

    def remove(self) -> None:
        self.kill()
        with suppress(CommandFailed):
            run("ip", "route", "del", self.network.node_pod_subnet(self.number))
        shutil.rmtree(self.folder, ignore_errors=True)

    def init_pid(self) -> int:
        switch = self.run_dir.processes.pid(self.name)
        init = only_child(switch) if switch is not None else None
        if init is None:
            raise RuntimeError(f"{self.name} is off; its log ends with:\n{self.run_dir.processes.log_tail(self.name)}")
        return init

    def execute(self, *argv: str | Path) -> str:
        """Runs a program inside the node."""
        namespaces = ("--net", "--mount", "--pid", "--uts", "--ipc")
        return run("nsenter", "--target", str(self.init_pid()), *namespaces, *argv)

    def kill_kubelet(self) -> None:
        """The node falls silent; its containers run on."""
        self.execute("sh", "-c", "touch /run/kubelet.off; kill -9 $(cat /run/kubelet.pid)")

    def start_kubelet(self) -> None:
        self.execute("rm", "-f", "/run/kubelet.off")

    def pod_execute(self, pod_uid: str, *argv: str) -> str:
        """Runs a program of this machine in a pod's network namespace."""
        sandboxes = json.loads(self.execute("ctr", "-n", "k8s.io", "containers", "info", self.sandbox(pod_uid)))
        path = next(n["path"] for n in sandboxes["Spec"]["linux"]["namespaces"] if n["type"] == "network")
        return self.execute("nsenter", f"--net={path}", *argv)

    def sandbox(self, pod_uid: str) -> str:
        kind = 'labels."io.cri-containerd.kind"==sandbox'
        result = self.execute(
            "ctr", "-n", "k8s.io", "containers", "ls", "-q", f'{kind},labels."io.kubernetes.pod.uid"=={pod_uid}'
        )
        if not result.strip():
            raise LookupError(f"{self.name} runs no pod {pod_uid}")
        return result.split()[0]

    def containerd(self) -> Containerd:
        """Reached through the node's own view of the file system."""
        return Containerd(Path(f"/proc/{self.init_pid()}/root/run/containerd/containerd.sock"))
