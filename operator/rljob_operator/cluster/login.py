"""Where the API server is, and who we are to it: a kubeconfig, or the service account of our own pod."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from kubernetes.aio import config
from kubernetes.aio.client import Configuration

_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class NoLogin(Exception):
    """There is no way to log in to an API server."""


@dataclass(frozen=True)
class Login:
    """Fills a client's configuration; call again when the server no longer takes the credentials."""

    kubeconfig: Path | None = None
    """The file to use. None: the pod's service account, and outside a pod $KUBECONFIG or ~/.kube/config."""

    async def configure(self, configuration: Configuration) -> None:
        """Set server, certificates and token."""
        try:
            if self.kubeconfig is None and "KUBERNETES_SERVICE_HOST" in os.environ:
                config.load_incluster_config(client_configuration=configuration)
                return
            path = self.kubeconfig or Path(os.environ.get("KUBECONFIG") or Path.home() / ".kube/config")
            await config.load_kube_config(
                config_file=str(path), client_configuration=configuration, persist_config=False
            )
        except (config.ConfigException, OSError) as error:
            raise NoLogin(f"cannot log in to a Kubernetes API server: {error}; give --kubeconfig a file") from error


@dataclass(frozen=True)
class ApiCredentials:
    """What it takes to log in."""

    server: str
    ca_path: str | None
    certificate_path: str | None
    private_key_path: str | None
    verify: bool
    scheme: str | None
    """Bearer or Basic."""
    token: str | None


async def api_credentials(login: Login) -> ApiCredentials:
    """The credentials as they are now."""
    configuration = Configuration()
    await login.configure(configuration)
    scheme, _, token = configuration.api_key.get("BearerToken", "").partition(" ")
    return ApiCredentials(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
        verify=configuration.verify_ssl,
        scheme=scheme.capitalize() or None,
        token=token or None,
    )


def own_namespace() -> str:
    """The namespace of the pod this process runs in; `default` outside a pod."""
    try:
        return _NAMESPACE_FILE.read_text(encoding="utf-8").strip()
    except OSError:
        return "default"
