"""Addresses of one of the clusters that this machine can hold at once."""

from dataclasses import dataclass

MAX_CLUSTERS = 8
MAX_NODES = 16
SERVICE_SUBNET = "10.96.0.0/16"


@dataclass(frozen=True, slots=True)
class ClusterNetwork:
    """Cluster `index` of this machine: a bridge with the API server at .1, node n at .10+n, and n's pods in a /24.

    Service addresses exist only in the nodes' own network namespaces, so that every cluster can use the same.
    """

    index: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < MAX_CLUSTERS:
            raise ValueError(f"cluster {self.index}: this machine's clusters are numbered 0 to {MAX_CLUSTERS - 1}")

    @property
    def bridge(self) -> str:
        return f"rljob{self.index}"

    @property
    def host_address(self) -> str:
        return f"172.30.{self.index}.1"

    @property
    def api_server(self) -> str:
        return f"https://{self.host_address}:6443"

    @property
    def loopback(self) -> str:
        """Where what only this machine's processes may reach listens: each cluster has its own loopback address."""
        return f"127.30.0.{self.index + 1}"

    @property
    def pod_subnet(self) -> str:
        return f"10.{244 + self.index}.0.0/16"

    @property
    def fake_pod_subnet(self) -> str:
        return f"10.{200 + self.index}.0.0/16"

    @property
    def pod_subnets(self) -> tuple[str, str]:
        return self.pod_subnet, self.fake_pod_subnet

    def node_address(self, node: int) -> str:
        return f"172.30.{self.index}.{10 + node}"

    def node_pod_subnet(self, node: int) -> str:
        return f"10.{244 + self.index}.{node}.0/24"

    def node_link(self, node: int) -> str:
        """The host's end of the node's cable; the kernel allows 15 characters."""
        return f"rljob{self.index}-n{node}"

    def node_mac_address(self, node: int) -> str:
        """The MAC address of a node: it survives a restart, so that no neighbour keeps a stale entry."""
        return f"02:6b:38:00:{self.index:02x}:{node:02x}"

    def cgroup(self, node: int) -> str:
        return f"rljob{self.index}-node{node}"


def node_name(node: int) -> str:
    return f"node{node}"
