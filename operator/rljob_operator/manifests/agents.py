"""Pods of agents beside a job, which a Deployment makes and makes again: they need no rank, and go on by themselves."""

from __future__ import annotations

import hashlib
import json

from rljob_api.planning.agent_endpoints import endpoint_places
from rljob_api.v1alpha1.conversation import AgentGroupSpec
from rljob_api.vocabulary import keys
from rljob_operator import names
from rljob_operator.manifests.context import JobContext, Manifest, Placement
from rljob_operator.manifests.metadata import metadata
from rljob_operator.manifests.pod.environment import by_name
from rljob_operator.manifests.pod.pods import ANYWHERE, WITHOUT_RIGHTS, place_of_pod, placed, templated, tolerations
from rljob_operator.manifests.pod.security import container_security_context, pod_security_context
from rljob_operator.manifests.pod.volumes import READABLE, SCRATCH, TLS_DIRECTORY
from rljob_operator.manifests.secrets import AGENTS_TOKEN_KEY

POD_SET = "agent-pool"
"""What a queue calls them; a worker group's name has no dash."""
GRACE_SECONDS = 5
"""A trajectory whose agent goes has failed, whatever it waits for."""
DEFAULT_REQUESTS = {"cpu": "1", "memory": "1Gi"}


def agents_deployment(
    context: JobContext, group: AgentGroupSpec, attempt: int, placement: Placement = ANYWHERE
) -> Manifest:
    """Pods of agents of an attempt: those of the one before trust another authority, and go first."""
    pod = agents_pod(context, group, attempt, placement)
    pod["metadata"]["annotations"][keys.ANNOTATION_TEMPLATE_HASH] = _digest(pod)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(context, names.agents_name(context.name), "agents"),
        "spec": {
            "replicas": group.replicas,
            "revisionHistoryLimit": 0,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": {keys.LABEL_AGENTS: context.name}},
            "template": pod,
        },
    }


def is_made_as(live: Manifest, wanted: Manifest) -> bool:
    """Whether a Deployment in the cluster was made from the same template: the server writes what it was given in other
    words, such as a quantity of 1024Mi. Its replicas are whoever's who scales it."""
    return _template_hash(live) == _template_hash(wanted)


def _template_hash(deployment: Manifest) -> str | None:
    annotations = deployment["spec"].get("template", {}).get("metadata", {}).get("annotations") or {}
    result: str | None = annotations.get(keys.ANNOTATION_TEMPLATE_HASH)
    return result


def _digest(pod: Manifest) -> str:
    return hashlib.sha256(json.dumps(pod, sort_keys=True).encode()).hexdigest()[:16]


def agents_pod(context: JobContext, group: AgentGroupSpec, attempt: int, placement: Placement = ANYWHERE) -> Manifest:
    """Labels and spec of one: ours, the user's template over it, and over both what a queue decided."""
    labels = {keys.LABEL_AGENTS: context.name, keys.LABEL_MANAGED_BY: keys.MANAGED_BY_VALUE}
    ours = {"metadata": {"labels": labels, "annotations": {}}, "spec": _spec(context, attempt)}
    return placed(templated(ours, group.template), placement)


def agents_ingress(context: JobContext) -> Manifest | None:
    """What a network policy lets them reach; None where there are none."""
    if context.spec.agent_group is None:
        return None
    ports = sorted({place.port for place in endpoint_places(context.plan)})
    agents = {"podSelector": {"matchLabels": {keys.LABEL_AGENTS: context.name}}}
    return {"from": [agents], "ports": [{"protocol": "TCP", "port": port} for port in ports]}


def endpoint_urls(context: JobContext) -> list[str]:
    """Where agents ask for trajectories, one a generating worker."""
    urls = []
    for place in endpoint_places(context.plan):
        template = names.peers_template(context.name, context.namespace, place.port)
        address = template.format(job=context.name, group=place.group, host=place.host)
        urls.append(f"https://{address}/rljob/v1")
    return urls


def _spec(context: JobContext, attempt: int) -> Manifest:
    profile = context.profiles["cpu"]
    authority = {
        "secretName": names.tls_secret_name(context.name, attempt),
        "defaultMode": READABLE,
        "items": [{"key": keys.TLS_AUTHORITY, "path": keys.TLS_AUTHORITY}],
    }
    return {
        **WITHOUT_RIGHTS,
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "securityContext": pod_security_context(context, profile),
        "containers": [_container(context)],
        "volumes": [{"name": "tls", "secret": authority}, {"name": "scratch", "emptyDir": {}}],
        "tolerations": tolerations(context, profile),
        **{field: value for field, value in place_of_pod(context, profile).items() if value},
    }


def _container(context: JobContext) -> Manifest:
    token = {"secretKeyRef": {"name": names.token_secret_name(context.name), "key": AGENTS_TOKEN_KEY}}
    urls = endpoint_urls(context)
    variables = {
        "RLJOB_ENDPOINT": urls[0],
        "RLJOB_ENDPOINTS": ",".join(urls),
        "SSL_CERT_FILE": f"{TLS_DIRECTORY}/{keys.TLS_AUTHORITY}",
    }
    env = [{"name": name, "value": value} for name, value in variables.items()]
    return {
        "name": keys.CONTAINER_AGENT,
        "imagePullPolicy": context.pods.images.pull_policy,
        "env": by_name([*env, {"name": "RLJOB_AGENT_TOKEN", "valueFrom": token}]),
        "resources": {"requests": dict(DEFAULT_REQUESTS)},
        "securityContext": container_security_context(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "tls", "mountPath": TLS_DIRECTORY, "readOnly": True},
            {"name": "scratch", "mountPath": SCRATCH},
        ],
    }
