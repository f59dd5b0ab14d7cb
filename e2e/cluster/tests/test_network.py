"""Addresses of clusters that are up side by side."""

from ipaddress import ip_address, ip_network

import pytest

from e2e.cluster.network import MAX_CLUSTERS, MAX_NODES, ClusterNetwork
from e2e.cluster.spec import ClusterSpec


def test_addresses_of_the_second_cluster() -> None:
    network = ClusterNetwork(1)
    assert network.api_server == "https://172.30.1.1:6443"
    assert network.node_address(2) == "172.30.1.12"
    assert network.node_pod_subnet(2) == "10.245.2.0/24"
    assert network.node_mac_address(2) == "02:6b:38:00:01:02"


def test_no_two_nodes_of_any_clusters_share_an_address_a_subnet_or_a_link() -> None:
    nodes = [(ClusterNetwork(cluster), node) for cluster in range(MAX_CLUSTERS) for node in range(1, MAX_NODES + 1)]
    for of_node in (
        ClusterNetwork.node_address,
        ClusterNetwork.node_pod_subnet,
        ClusterNetwork.node_link,
        ClusterNetwork.node_mac_address,
    ):
        values = {of_node(network, node) for network, node in nodes}
        assert len(values) == len(nodes), of_node.__name__


def test_pods_of_a_node_lie_in_the_subnet_of_their_cluster_and_simulated_ones_in_none() -> None:
    for network in map(ClusterNetwork, range(MAX_CLUSTERS)):
        assert ip_network(network.node_pod_subnet(MAX_NODES)).subnet_of(ip_network(network.pod_subnet))
        assert not any(
            ip_network(network.fake_pod_subnet).overlaps(ip_network(ClusterNetwork(i).pod_subnet)) for i in range(8)
        )


def test_what_only_this_machine_may_reach_listens_on_loopback() -> None:
    assert all(ip_address(ClusterNetwork(index).loopback).is_loopback for index in range(MAX_CLUSTERS))


def test_link_names_fit_into_the_kernels_fifteen_characters() -> None:
    assert max(len(ClusterNetwork(index).node_link(MAX_NODES)) for index in range(MAX_CLUSTERS)) <= 15


def test_a_cluster_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match="cluster 8: .*0 to 7"):
        ClusterNetwork(MAX_CLUSTERS)


def test_devices_on_a_node_that_is_not_there_are_refused() -> None:
    with pytest.raises(ValueError, match="devices for node3, but the nodes are node1 to node2"):
        ClusterSpec(num_nodes=2, devices={"node3": {"nvidia.com/gpu": 1}})


def test_a_spec_is_read_back_as_it_was_written() -> None:
    spec = ClusterSpec(index=3, num_nodes=4, devices={"node4": {"nvidia.com/gpu": 2}}, num_kwok_nodes=8)
    assert ClusterSpec.from_json(spec.to_json()) == spec


def test_simulated_nodes_get_time_to_renew_a_thousand_leases() -> None:
    assert ClusterSpec().effective_grace_seconds == 8
    assert ClusterSpec(num_kwok_nodes=1000).effective_grace_seconds == 300
