"""What a cluster is asked to be, and where its state lives while it is up."""

import dataclasses
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock

from e2e.cluster.network import MAX_NODES, ClusterNetwork
from e2e.cluster.processes import ProcessTable, remember
from rljob_worker.built_once import cache_root, locked


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """Nodes are numbered from 1 and named node1, node2, …

    A node that stops reporting is NotReady after `grace_seconds`; its pods are evicted `eviction_seconds` later.
    """

    index: int = 0
    num_nodes: int = 2
    devices: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Node name to resource name to count, such as {"node2": {"nvidia.com/gpu": 2}}."""
    num_kwok_nodes: int = 0
    grace_seconds: int = 8
    eviction_seconds: int = 15

    def __post_init__(self) -> None:
        if not 0 <= self.num_nodes <= MAX_NODES:
            raise ValueError(f"{self.num_nodes} nodes: 0 to {MAX_NODES} fit on a machine")
        unknown = set(self.devices) - {f"node{n}" for n in self.nodes}
        if unknown:
            raise ValueError(
                f"devices for {', '.join(sorted(unknown))}, but the nodes are node1 to node{self.num_nodes}"
            )

    @property
    def network(self) -> ClusterNetwork:
        return ClusterNetwork(self.index)

    @property
    def effective_grace_seconds(self) -> int:
        """kwok renews a thousand leases as fast as the machine lets it; the simulated nodes are not there to fail."""
        return max(self.grace_seconds, 300) if self.num_kwok_nodes else self.grace_seconds

    @property
    def nodes(self) -> range:
        return range(1, self.num_nodes + 1)

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "ClusterSpec":
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True)
class RunDir:
    """The folder of one cluster, thrown away when it goes down.

    It is short and beside the images' store: a UNIX socket's path has at most 107 characters, and hard links
    stay on one file system.
    """

    root: Path

    @classmethod
    def of(cls, index: int) -> "RunDir":
        return cls(cache_root() / "clusters" / str(index))

    @classmethod
    def of_running(cls, index: int) -> "RunDir":
        folder = cls.of(index)
        if not folder.spec.exists():
            raise RuntimeError(f"no cluster {index} is up: `python -m e2e.cluster --index {index} up` starts one")
        return folder

    @property
    def spec(self) -> Path:
        return self.root / "cluster.json"

    @property
    def owner(self) -> Path:
        """The record of the process that the cluster ends with; absent once it is left to run."""
        return self.root / "owner.json"

    def locked(self) -> FileLock:
        """Held by who takes the folder, or takes it away."""
        return locked(self.root.with_suffix(".lock"))

    @property
    def pki(self) -> Path:
        return self.root / "pki"

    @property
    def shared(self) -> Path:
        """Seen by every node at the same path."""
        return self.root / "shared"

    @property
    def certificate_authority(self) -> Path:
        """The API server's self-signed certificate, its own authority."""
        return self.pki / "apiserver.crt"

    @property
    def processes(self) -> ProcessTable:
        return ProcessTable(self.root / "processes", self.root / "log")

    def kubeconfig(self, user: str) -> Path:
        return self.root / f"{user}.kubeconfig"

    def node(self, name: str) -> Path:
        return self.root / "nodes" / name

    def device_plugins(self, node: str) -> Path:
        return self.node(node) / "var/lib/kubelet/device-plugins"


def claim(spec: ClusterSpec) -> RunDir:
    """The cluster's folder, which only one can have; it is this process's."""
    folder = RunDir.of(spec.index)
    with folder.locked():
        if folder.root.exists():
            raise RuntimeError(
                f"cluster {spec.index} is up: `python -m e2e.cluster --index {spec.index} down` ends it; another "
                "--index starts one beside it"
            )
        folder.root.mkdir(parents=True)
        remember(folder.owner, os.getpid(), sys.argv)
        folder.spec.write_text(spec.to_json())
    return folder
