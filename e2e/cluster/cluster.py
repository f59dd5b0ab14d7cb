"""What a test may ask of a cluster, whichever way it runs."""

import importlib
import json
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from e2e.cluster.commands import CommandFailed, run
from e2e.cluster.go_programs import program
from e2e.cluster.images.image_recipes import ImageRecipe
from e2e.cluster.processes import remembered
from e2e.cluster.spec import ClusterSpec, RunDir

BACKENDS = {"local": "e2e.cluster.local_cluster:LocalCluster", "kind": "e2e.cluster.kind_cluster:KindCluster"}


class KubeCluster(ABC):
    """A running cluster; `Cluster.up()` starts one of this machine's processes, or with CLUSTER=kind of containers."""

    spec: ClusterSpec
    run_dir: RunDir

    @staticmethod
    def up(
        nodes: int = 2,
        devices: Mapping[str, Mapping[str, int]] | None = None,
        kwok: int = 0,
        index: int = 0,
        build_images: bool = True,
    ) -> "KubeCluster":
        """A cluster with all nodes Ready and the images of this checkout on them.

        `devices` is node name to resource to count, such as `{"node2": {"nvidia.com/gpu": 2}}`; `kwok` counts
        simulated nodes; clusters of different `index` are up at once. Without `build_images` the nodes get the images
        as they were built last. It is this process's until it is left to run: what a process that was killed left is
        taken down first.
        """
        spec = ClusterSpec(index, nodes, devices or {}, kwok)
        backend().clear_abandoned(index)
        return backend().start(spec, build_images)

    @staticmethod
    def attach(index: int = 0) -> "KubeCluster":
        """The cluster that is up."""
        return backend().running(index)

    @classmethod
    @abstractmethod
    def build(cls, *more: ImageRecipe) -> None:
        """Builds and keeps the programs and images, and `more` images, that are absent or whose sources changed."""

    @classmethod
    @abstractmethod
    def start(cls, spec: ClusterSpec, build_images: bool) -> "KubeCluster": ...

    @classmethod
    @abstractmethod
    def running(cls, index: int) -> "KubeCluster": ...

    @classmethod
    def clear_abandoned(cls, index: int) -> None:
        """Takes down what nobody will: a cluster whose process died, or of which nothing runs."""
        folder = RunDir.of(index)
        with folder.locked():
            if not folder.spec.exists():  # its creator was killed at that very moment
                shutil.rmtree(folder.root, ignore_errors=True)
            elif (cluster := cls.running(index)).is_abandoned():
                cluster.take_down()

    def is_abandoned(self) -> bool:
        owner = self.run_dir.owner
        return remembered(owner) is None if owner.exists() else not self.is_running()

    def leave_running(self) -> None:
        """It outlives this process: `down` ends it."""
        self.run_dir.owner.unlink(missing_ok=True)

    def down(self) -> None:
        """Leaves nothing behind."""
        with self.run_dir.locked():
            if self.run_dir.root.exists():
                self.take_down()

    @abstractmethod
    def is_running(self) -> bool:
        """Whether anything of it lives."""

    @abstractmethod
    def take_down(self) -> None:
        """Ends and removes whatever is still there of it."""

    @property
    @abstractmethod
    def kubeconfig(self) -> Path:
        """The administrator's."""

    @property
    @abstractmethod
    def shared_folder(self) -> Path:
        """For volumes of type hostPath: every node sees it at this path."""

    @property
    @abstractmethod
    def host_address(self) -> str:
        """Address of this machine, as pods reach it."""

    @abstractmethod
    def node_name(self, number: int) -> str: ...

    @abstractmethod
    def load_images(self) -> Mapping[str, int]:
        """Rebuilds what changed and brings it to the running nodes; image to bytes sent. Pods need a restart."""

    @abstractmethod
    def load_image(self, recipe: ImageRecipe) -> None:
        """Brings an image that not every cluster has to the running nodes; built where it is absent or its sources
        changed."""

    @abstractmethod
    def load_archive(self, archive: Path) -> None:
        """Brings an image in docker's archive form to the running nodes."""

    @abstractmethod
    def kill_node(self, number: int) -> None:
        """Power off: nothing in the node gets to say goodbye."""

    @abstractmethod
    def restart_node(self, number: int) -> None:
        """Power off, if it is on, and on; returns when it is Ready. Its disk is as it was."""

    @abstractmethod
    def kill_kubelet(self, number: int) -> None:
        """The node falls silent; its containers run on."""

    @abstractmethod
    def start_kubelet(self, number: int) -> None: ...

    @abstractmethod
    def pod_netns_exec(self, namespace: str, pod: str, *argv: str) -> str:
        """Runs a program of the node, such as `ip` or `tc`, in the network namespace of a running pod."""

    def kubectl(self, *words: str | Path, input: str | None = None) -> str:
        """What kubectl prints; a CommandFailed with its message otherwise."""
        return run(program("kubectl"), "--kubeconfig", self.kubeconfig, *words, input=input)

    def apply(self, manifest: Mapping[str, Any]) -> None:
        """`kubectl apply` of one object."""
        self.kubectl("apply", "-f", "-", input=json.dumps(manifest))

    def helm(self, *words: str | Path) -> str:
        return run(program("helm"), "--kubeconfig", self.kubeconfig, *words)

    def ready_nodes(self) -> set[str]:
        template = '{range .items[*]}{.metadata.name}={.status.conditions[?(@.type=="Ready")].status} {end}'
        nodes = self.kubectl("get", "nodes", "-o", f"jsonpath={template}").split()
        return {node.removesuffix("=True") for node in nodes if node.endswith("=True")}

    def has_default_service_account(self) -> bool:
        with suppress(CommandFailed):
            return bool(self.kubectl("-n", "default", "get", "serviceaccount", "default", "-o", "name"))
        return False


def backend() -> type[KubeCluster]:
    asked_for = os.environ.get("CLUSTER") or "local"
    if asked_for not in BACKENDS:
        raise ValueError(f"CLUSTER={asked_for}: the kinds of cluster are {', '.join(BACKENDS)}")
    module, _, name = BACKENDS[asked_for].partition(":")
    result: type[KubeCluster] = getattr(importlib.import_module(module), name)
    return result
