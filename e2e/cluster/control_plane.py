"""etcd, API server, controller manager, scheduler and DNS: processes of this machine, beside the nodes."""

from e2e.cluster import access
from e2e.cluster.commands import run
from e2e.cluster.go_programs import program
from e2e.cluster.network import SERVICE_SUBNET, ClusterNetwork
from e2e.cluster.spec import ClusterSpec, RunDir
from e2e.cluster.watching import ClusterWatch

# the order in which they stop
PROCESSES = ("kwok", "coredns", "kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd")
CLIENT_RATE = ("--kube-api-qps=200", "--kube-api-burst=400")


def start(spec: ClusterSpec, folder: RunDir) -> None:
    """Returns when the API server answers; the others find their feet by themselves."""
    network, processes = spec.network, folder.processes
    folder.pki.mkdir(parents=True)
    run("openssl", "genrsa", "-out", folder.pki / "sa.key", "2048")
    tokens = access.write_tokens(folder)
    access.write_kubeconfigs(folder, network, tokens)
    processes.start("etcd", [program("etcd"), *etcd_flags(network, folder)])
    processes.start("kube-apiserver", [program("kube-apiserver"), *api_server_flags(spec, folder)])
    ClusterWatch(processes).wait_until(lambda: is_ready(folder), "the API server to be ready", timeout_seconds=240)
    processes.start("kube-controller-manager", [program("kube-controller-manager"), *controller_flags(spec, folder)])
    processes.start("kube-scheduler", [program("kube-scheduler"), *scheduler_flags(network, folder)])
    start_dns(network, folder)


def is_ready(folder: RunDir) -> bool:
    return bool(run(program("kubectl"), "--kubeconfig", folder.kubeconfig(access.ADMIN), "get", "--raw", "/readyz"))


def etcd_flags(network: ClusterNetwork, folder: RunDir) -> list[str]:
    clients, peers = f"http://{network.loopback}:2379", f"http://{network.loopback}:2380"
    return [
        f"--data-dir={folder.root / 'etcd'}",
        f"--listen-client-urls={clients}",
        f"--advertise-client-urls={clients}",
        f"--listen-peer-urls={peers}",
        f"--initial-advertise-peer-urls={peers}",
        f"--initial-cluster=default={peers}",
        "--unsafe-no-fsync",  # `down` throws the data away
        f"--quota-backend-bytes={4 << 30}",
    ]


def api_server_flags(spec: ClusterSpec, folder: RunDir) -> list[str]:
    network = spec.network
    return [
        f"--etcd-servers=http://{network.loopback}:2379",
        f"--service-account-key-file={folder.pki / 'sa.key'}",
        f"--service-account-signing-key-file={folder.pki / 'sa.key'}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--cert-dir={folder.pki}",
        f"--token-auth-file={access.token_file(folder)}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        f"--bind-address={network.host_address}",
        f"--advertise-address={network.host_address}",
        "--secure-port=6443",
        f"--service-cluster-ip-range={SERVICE_SUBNET}",
        "--allow-privileged=true",
        "--kubelet-preferred-address-types=InternalIP",
        # webhooks are called at pod addresses: the host has no kube-proxy that would translate a service's
        "--enable-aggregator-routing=true",
        f"--default-not-ready-toleration-seconds={spec.eviction_seconds}",
        f"--default-unreachable-toleration-seconds={spec.eviction_seconds}",
    ]


def controller_flags(spec: ClusterSpec, folder: RunDir) -> list[str]:
    return [
        f"--kubeconfig={folder.kubeconfig('controller-manager')}",
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={folder.pki / 'sa.key'}",
        f"--root-ca-file={folder.certificate_authority}",
        "--allocate-node-cidrs=false",
        "--leader-elect=false",
        f"--bind-address={spec.network.loopback}",
        "--node-monitor-period=1s",
        f"--node-monitor-grace-period={spec.effective_grace_seconds}s",
        # a claim made a moment after its volume is bound at the next look
        "--pvclaimbinder-sync-period=2s",
        *CLIENT_RATE,
    ]


def scheduler_flags(network: ClusterNetwork, folder: RunDir) -> list[str]:
    return [
        f"--kubeconfig={folder.kubeconfig('scheduler')}",
        "--leader-elect=false",
        f"--bind-address={network.loopback}",
        *CLIENT_RATE,
    ]


def start_dns(network: ClusterNetwork, folder: RunDir) -> None:
    kubectl = (program("kubectl"), "--kubeconfig", folder.kubeconfig(access.ADMIN))
    run(*kubectl, "apply", "-f", "-", input=access.COREDNS_ROLE)
    corefile = folder.root / "Corefile"
    corefile.write_text(dns_config(network, folder))
    folder.processes.start("coredns", [program("coredns"), "-conf", corefile])


def dns_config(network: ClusterNetwork, folder: RunDir) -> str:
    return f""".:53 {{
  errors
  bind {network.host_address}
  kubernetes cluster.local in-addr.arpa {{
    kubeconfig {folder.kubeconfig("dns")} rljob
    ttl 1
  }}
}}
"""
