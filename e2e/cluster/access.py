"""Who may speak to the API server: one static token a user, and a kubeconfig for each."""

import secrets
from pathlib import Path

import yaml

from e2e.cluster.network import MAX_NODES, ClusterNetwork, node_name
from e2e.cluster.spec import RunDir

ADMIN = "admin"
CONTROLLER_MANAGER = "system:kube-controller-manager"
SCHEDULER = "system:kube-scheduler"
KUBE_PROXY = "system:kube-proxy"
COREDNS = "system:coredns"
COMPONENTS = {"controller-manager": CONTROLLER_MANAGER, "scheduler": SCHEDULER, "proxy": KUBE_PROXY, "dns": COREDNS}

# the built-in roles cover every component but CoreDNS
COREDNS_ROLE = """
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: "system:coredns"}
rules:
  - {apiGroups: [""], resources: [services, pods, namespaces], verbs: [list, watch]}
  - {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: "system:coredns"}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:coredns"}
subjects: [{kind: User, name: "system:coredns", apiGroup: rbac.authorization.k8s.io}]
"""


def write_tokens(run: RunDir) -> dict[str, str]:
    """Writes the API server's token file, which it reads only when it starts; kubeconfig name to token."""
    users = {ADMIN: (ADMIN, "system:masters"), **{name: (user, "") for name, user in COMPONENTS.items()}}
    for node in range(1, MAX_NODES + 1):
        users[node_name(node)] = (f"system:node:{node_name(node)}", "system:nodes")
    tokens = {name: secrets.token_hex(16) for name in users}
    lines = [f'{tokens[name]},{user},{name},"{groups}"\n' for name, (user, groups) in users.items()]
    token_file(run).touch(mode=0o600)
    token_file(run).write_text("".join(lines))
    return tokens


def token_file(run: RunDir) -> Path:
    return run.pki / "tokens.csv"


def write_kubeconfigs(run: RunDir, network: ClusterNetwork, tokens: dict[str, str]) -> None:
    for name, token in tokens.items():
        path = run.kubeconfig(name)
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(kubeconfig(network.api_server, run.certificate_authority, token)))


def kubeconfig(server: str, certificate_authority: Path, token: str) -> dict[str, object]:
    cluster = {"server": server, "certificate-authority": str(certificate_authority)}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "rljob", "cluster": cluster}],
        "users": [{"name": "user", "user": {"token": token}}],
        "contexts": [{"name": "rljob", "context": {"cluster": "rljob", "user": "user"}}],
        "current-context": "rljob",
    }
