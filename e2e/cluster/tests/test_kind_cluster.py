"""How kind is configured; and what is said where kind cannot run."""

from pathlib import Path

import pytest
import yaml

from e2e.cluster.cluster import backend
from e2e.cluster.kind_cluster import KindCluster, host_address, kind_config, require_engine
from e2e.cluster.spec import ClusterSpec, RunDir


def test_every_worker_shares_its_device_plugins_and_one_folder_with_the_host(tmp_path: Path) -> None:
    config = kind_config(ClusterSpec(num_nodes=2), RunDir(tmp_path))
    assert [node["role"] for node in config["nodes"]] == ["control-plane", "worker", "worker"]
    devices, shared = config["nodes"][2]["extraMounts"]
    assert devices["hostPath"] == f"{tmp_path}/nodes/node2/var/lib/kubelet/device-plugins"
    assert shared == {"hostPath": f"{tmp_path}/shared", "containerPath": f"{tmp_path}/shared"}


def test_a_silent_node_is_found_out_as_soon_as_on_the_local_cluster(tmp_path: Path) -> None:
    patch = yaml.safe_load(kind_config(ClusterSpec(), RunDir(tmp_path))["kubeadmConfigPatches"][0])
    assert patch["controllerManager"]["extraArgs"] == {"node-monitor-grace-period": "8s"}
    assert patch["apiServer"]["extraArgs"]["default-unreachable-toleration-seconds"] == "15"


def test_kinds_first_worker_has_no_number(tmp_path: Path) -> None:
    cluster = KindCluster(ClusterSpec(index=1), RunDir(tmp_path))
    assert [cluster.node_name(number) for number in (1, 2)] == ["rljob1-worker", "rljob1-worker2"]


def test_pods_reach_this_machine_at_the_gateway_of_kinds_network() -> None:
    addresses = [{"Subnet": "fc00::/64", "Gateway": "fc00::1"}, {"Subnet": "172.18.0.0/16", "Gateway": "172.18.0.1"}]
    assert host_address([{"Name": "kind", "IPAM": {"Config": addresses}}]) == "172.18.0.1"


def test_without_an_engine_the_message_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(RuntimeError, match="CLUSTER=kind needs a docker engine.*leave CLUSTER out"):
        require_engine()


def test_the_environment_chooses_the_kind_of_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLUSTER", "kind")
    assert backend() is KindCluster
    monkeypatch.setenv("CLUSTER", "minikube")
    with pytest.raises(ValueError, match="CLUSTER=minikube: the kinds of cluster are local, kind"):
        backend()
