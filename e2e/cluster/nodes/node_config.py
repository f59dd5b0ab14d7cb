"""Configuration of the programs of a node: plain data, written to the node's folder."""

import json
from pathlib import Path
from typing import Any

from e2e.cluster.network import ClusterNetwork, node_name


def kubelet(network: ClusterNetwork, node: int) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "clusterDNS": [network.host_address],
        "clusterDomain": "cluster.local",
        "resolvConf": "/etc/resolv.conf",
        # root without CAP_SYS_RESOURCE may not lower its own
        "oomScoreAdj": 0,
        "cgroupDriver": "cgroupfs",
        # one for each node: two kubelets that share a root take each other's pods for orphans
        "cgroupRoot": f"/{network.cgroup(node)}",
        "failCgroupV1": False,
        "failSwapOn": False,
        # an image that is collected cannot be pulled again
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "evictionHard": {"nodefs.available": "1%", "imagefs.available": "1%", "memory.available": "100Mi"},
        "nodeStatusUpdateFrequency": "2s",
        "nodeLeaseDurationSeconds": 4,
        "kubeAPIQPS": 100,
        "kubeAPIBurst": 200,
        "eventRecordQPS": 0,
    }


def kube_proxy(network: ClusterNetwork, node: int, kubeconfig: Path) -> dict[str, Any]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clusterCIDR": network.pod_subnet,
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        "hostnameOverride": node_name(node),
        # 0 leaves the kernel's limits alone, which a network namespace may not set
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "nftables": {"minSyncPeriod": "100ms", "syncPeriod": "30s"},
    }


def pod_network(network: ClusterNetwork, node: int) -> str:
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        # masquerading would hide which pod of another node is speaking
        "ipMasq": False,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": network.node_pod_subnet(node)}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return json.dumps({"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge, ports]})
