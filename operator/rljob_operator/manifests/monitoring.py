"""The PodMonitor of a job: which labels its series carry."""

from __future__ import annotations

from rljob_api.vocabulary import keys
from rljob_operator.manifests.context import JobContext, Manifest
from rljob_operator.manifests.metadata import metadata, selector

TARGET_LABELS = {
    "rljob": keys.LABEL_JOB,
    "group": keys.LABEL_GROUP,
    "host": keys.LABEL_HOST_INDEX,
    "attempt": keys.LABEL_ATTEMPT,
}
"""Label of a series to label of the pod; dashboards and alerts select by them."""


def pod_monitor(context: JobContext) -> Manifest:
    """Both ports of every pod of the job."""
    result = metadata(context, context.name, "pod-monitor", context.pods.monitoring.labels)
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": result,
        "spec": {
            "selector": {"matchLabels": selector(context)},
            "podMetricsEndpoints": [_endpoint(context, port) for port in ("metrics", "buffer-metrics")],
        },
    }


def _endpoint(context: JobContext, port: str) -> Manifest:
    return {
        "port": port,
        "interval": context.pods.monitoring.interval,
        "relabelings": [
            {"sourceLabels": [_discovered(label)], "targetLabel": name} for name, label in TARGET_LABELS.items()
        ],
    }


def _discovered(label: str) -> str:
    """What Prometheus calls a pod's label while it relabels."""
    return "__meta_kubernetes_pod_label_" + "".join(char if char.isalnum() else "_" for char in label)
