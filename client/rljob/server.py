"""`KubernetesServer`: requests to an API server, as a kubeconfig says. Of the official client only what is delicate is
used: TLS, contexts, and plug-ins for credentials."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rljob.errors import AlreadyThere, ClusterError, NotThere, Unreachable

Object = dict[str, Any]
"""An object of the Kubernetes API as JSON."""

TIMEOUT_SECONDS = 30.0
"""Longest wait for an answer, and for the next line of a log that is not followed."""
_MERGE = "application/merge-patch+json"
_ERRORS: Mapping[int, type[ClusterError]] = {404: NotThere, 409: AlreadyThere, 429: Unreachable}


class KubernetesServer:
    """The API server of a kubeconfig's context, or of the pod that this runs in. Every method raises ClusterError."""

    def __init__(self, context: str | None = None, kubeconfig: Path | None = None) -> None:
        from kubernetes.client import ApiClient, Configuration

        configuration = Configuration()
        self.namespace = _configure(configuration, context, kubeconfig)
        """That of the context."""
        self._client = ApiClient(configuration)
        self._client.user_agent = "rljob"

    def read(self, path: str, **query: str) -> Object:
        return self._object("GET", path, query)

    def create(self, path: str, body: Mapping[str, Any]) -> Object:
        return self._object("POST", path, {"fieldValidation": "Strict"}, body)

    def merge(self, path: str, body: Mapping[str, Any]) -> Object:
        return self._object("PATCH", path, {}, body, _MERGE)

    def delete(self, path: str) -> None:
        self._object("DELETE", path, {"propagationPolicy": "Background"})

    def lines(self, path: str, **query: str) -> Iterator[str]:
        """A text line by line, as it comes."""
        from urllib3.exceptions import HTTPError

        seconds = None if query.get("follow") == "true" else TIMEOUT_SECONDS
        response = self._send("GET", path, query, None, "application/json", seconds)
        rest = b""
        try:
            for chunk in response.stream(65536, decode_content=True):
                *whole, rest = (rest + chunk).split(b"\n")
                yield from (line.decode(errors="replace") for line in whole)
        except HTTPError as error:
            raise Unreachable(f"the log broke off: {error}") from error
        finally:
            response.close()
        if rest:
            yield rest.decode(errors="replace")

    def _object(
        self, method: str, path: str, query: Mapping[str, str], body: Any = None, kind: str = "application/json"
    ) -> Object:
        response = self._send(method, path, query, body, kind, TIMEOUT_SECONDS)
        result: Object = json.loads(response.read())
        return result

    def _send(
        self, method: str, path: str, query: Mapping[str, str], body: Any, kind: str, seconds: float | None
    ) -> Any:
        """The answer, its body not yet read, if it is a good one."""
        from urllib3.exceptions import HTTPError

        serialized = self._client.param_serialize(
            method,
            path,
            query_params=list(query.items()),
            header_params={"Accept": "application/json, */*", "Content-Type": kind},
            body=body,
            auth_settings=["BearerToken"],
        )
        try:
            response = self._client.call_api(*serialized, _request_timeout=(TIMEOUT_SECONDS, seconds)).response
        except HTTPError as error:
            raise Unreachable(f"no answer from {self._client.configuration.host}: {_innermost(error)}") from error
        if not 200 <= response.status < 300:
            raise client_error_of(response.status, response.read(), f"{method} {path}")
        return response


def client_error_of(status: int, body: bytes, request: str) -> ClusterError:
    """What a bad answer means, with the server's message."""
    try:
        words = str(json.loads(body).get("message", ""))
    except (ValueError, AttributeError):
        words = body.decode(errors="replace")[:500]
    kind = Unreachable if status >= 500 else _ERRORS.get(status, ClusterError)
    return kind(words or f"{request}: the API server answers {status}")


def _configure(configuration: Any, context: str | None, kubeconfig: Path | None) -> str:
    """Fill the configuration; the namespace of the context."""
    from kubernetes import config

    try:
        if context is None and kubeconfig is None and "KUBERNETES_SERVICE_HOST" in os.environ:
            config.load_incluster_config(client_configuration=configuration)
            return "default"
        path = None if kubeconfig is None else str(kubeconfig)
        config.load_kube_config(path, context, client_configuration=configuration, persist_config=False)
        contexts, current = config.list_kube_config_contexts(path)
    except (config.ConfigException, OSError) as error:
        words = f"cannot log in to a cluster: {error}; --kubeconfig names the file and --context what in it to use"
        raise ClusterError(words) from error
    chosen = next((item for item in contexts if item["name"] == context), current)
    return str(chosen["context"].get("namespace", "default"))


def _innermost(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return str(reason or error)
