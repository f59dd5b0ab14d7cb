"""An API server by itself: etcd, kube-apiserver and no node, to ask what it admits."""

from __future__ import annotations

import json
import secrets
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

from e2e.cluster.commands import CommandFailed, run
from e2e.cluster.go_programs import KUBERNETES_VERSION, program
from e2e.cluster.processes import ProcessTable
from e2e.cluster.waiting import wait_until
from e2e.operator import CHART

HOST = "127.0.0.1"
Manifest = dict[str, Any]


@dataclass(frozen=True, slots=True)
class AdmissionResponse:
    """What the server says to one object."""

    code: int
    message: str

    @property
    def is_admitted(self) -> bool:
        return self.code in (200, 201)

    @property
    def is_invalid(self) -> bool:
        """Whether the object is refused before any admission judges it."""
        return self.code == 422 and "ValidatingAdmissionPolicy" not in self.message


class AdmissionApiServer:
    """One that runs; `ask` keeps a connection."""

    def __init__(self, port: int, certificate: Path, token: str) -> None:
        self._server = f"https://{HOST}:{port}"
        self._certificate = certificate
        self._token = token
        self._connection = HTTPSConnection(HOST, port, context=ssl.create_default_context(cafile=certificate))

    def kubectl(self, *words: str, input: str = "") -> str:
        flags = ("--server", self._server, "--certificate-authority", self._certificate, "--token", self._token)
        return run(program("kubectl"), *flags, *words, input=input)

    def ask(self, path: str, manifest: Manifest) -> AdmissionResponse:
        """Whether an object could be made: nothing is."""
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        self._connection.request("POST", f"{path}?dryRun=All", json.dumps(manifest), headers)
        with closing(self._connection.getresponse()) as response:
            return AdmissionResponse(response.status, json.loads(response.read()).get("message", ""))

    def close(self) -> None:
        self._connection.close()

    def make_namespace(self, name: str, *, accounts: Sequence[str] = ("default",), **standard: str) -> None:
        """With the service accounts that a controller would make, and labels of Pod Security admission."""
        labels = {f"pod-security.kubernetes.io/{key}": item for key, item in standard.items()}
        made = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}]
        for service_account in accounts:
            metadata = {"name": service_account, "namespace": name}
            made.append({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
        self.kubectl("apply", "-f", "-", input="\n---\n".join(map(json.dumps, made)))

    def apply_policies(self, release: str, namespace: str, ceilings: Manifest) -> None:
        """Those of the chart with these ceilings, for one namespace."""
        values = {"settings": {"ceilings": ceilings}, "watchNamespaces": [namespace]}
        served = "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy"
        rendered = run(
            program("helm"), "template", release, CHART, "-n", "rljob-system",
            "--kube-version", KUBERNETES_VERSION, "--api-versions", served,
            "--show-only", "templates/ceilings.yaml", "--values", "-", input=json.dumps(values),
        )  # fmt: skip
        self.kubectl("apply", "-f", "-", input=rendered)

    def ask_pod(self, namespace: str, pod: Manifest) -> AdmissionResponse:
        """Whether this could be the pod of a job."""
        own = pod.get("metadata", {})
        labels = {**own.get("labels", {}), "app.kubernetes.io/managed-by": "rljob-operator"}
        metadata = {"name": "pod", "annotations": own.get("annotations", {}), "labels": labels}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod["spec"]}
        return self.ask(f"/api/v1/namespaces/{namespace}/pods", body)

    def wait_for_policy(self, namespace: str, refused: Callable[[], bool] | None = None) -> None:
        """A policy is in force a little after it was made; `refused` asks for what it refuses, a privileged pod."""
        container = {"name": "c", "image": "a:1", "securityContext": {"privileged": True}}
        privileged: Manifest = {"spec": {"containers": [container]}}
        ask = refused or (lambda: not self.ask_pod(namespace, privileged).is_admitted)
        wait_until(ask, f"the policy of {namespace}", 60)

    def is_ready(self) -> bool:
        try:
            self.kubectl("get", "--raw", "/readyz")
        except CommandFailed:
            return False
        return True


@contextmanager
def api_server(folder: Path) -> Iterator[AdmissionApiServer]:
    """Both processes, which end with the block."""
    processes = ProcessTable(folder / "processes", folder / "log")
    etcd, peers, port = _free_port(), _free_port(), _free_port()
    token = secrets.token_hex(16)
    (folder / "tokens.csv").write_text(f'{token},admin,admin,"system:masters"\n')
    run("openssl", "genrsa", "-out", folder / "sa.key", "2048")
    try:
        processes.start("etcd", [program("etcd"), *_etcd_flags(folder, etcd, peers)])
        processes.start("kube-apiserver", [program("kube-apiserver"), *_server_flags(folder, etcd, port)])
        wait_until((folder / "apiserver.crt").exists, "the API server's certificate", 120)
        server = AdmissionApiServer(port, folder / "apiserver.crt", token)
        wait_until(server.is_ready, "the API server to be ready", 240)
        yield server
        server.close()
    finally:
        for name in ("kube-apiserver", "etcd"):
            processes.stop(name)


def _etcd_flags(folder: Path, clients: int, peers: int) -> list[str]:
    client_url, peer_url = f"http://{HOST}:{clients}", f"http://{HOST}:{peers}"
    return [
        f"--data-dir={folder / 'etcd'}",
        f"--listen-client-urls={client_url}",
        f"--advertise-client-urls={client_url}",
        f"--listen-peer-urls={peer_url}",
        f"--initial-advertise-peer-urls={peer_url}",
        f"--initial-cluster=default={peer_url}",
        "--unsafe-no-fsync",
    ]


def _server_flags(folder: Path, etcd: int, port: int) -> list[str]:
    return [
        f"--etcd-servers=http://{HOST}:{etcd}",
        f"--service-account-key-file={folder / 'sa.key'}",
        f"--service-account-signing-key-file={folder / 'sa.key'}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--cert-dir={folder}",
        f"--token-auth-file={folder / 'tokens.csv'}",
        "--authorization-mode=RBAC",
        f"--bind-address={HOST}",
        f"--secure-port={port}",
        "--endpoint-reconciler-type=none",
        "--service-cluster-ip-range=10.96.0.0/16",
        "--allow-privileged=true",
        # what the examples and the hostile templates use is judged by admission, and not dropped or refused before
        "--feature-gates=UserNamespacesSupport=true,ProcMountType=true,ImageVolume=true,DynamicResourceAllocation=true",
    ]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
