"""Metadata of children: whose they are, and by which labels everybody finds them."""

from __future__ import annotations

from collections.abc import Mapping

from rljob_api.vocabulary import keys
from rljob_operator.manifests.context import JobContext, Manifest


def labels(context: JobContext, component: str) -> dict[str, str]:
    """Labels of every child."""
    return {
        keys.LABEL_JOB: context.name,
        keys.LABEL_COMPONENT: component,
        keys.LABEL_MANAGED_BY: keys.MANAGED_BY_VALUE,
    }


def owner_reference(context: JobContext) -> Manifest:
    """The job as the owner that controls the child: garbage collection deletes it with the job."""
    return {
        "apiVersion": keys.API_VERSION,
        "kind": keys.KIND,
        "name": context.name,
        "uid": context.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def metadata(context: JobContext, name: str, component: str, more_labels: Mapping[str, str] | None = None) -> Manifest:
    """Metadata of a child."""
    return {
        "name": name,
        "namespace": context.namespace,
        "labels": {**labels(context, component), **(more_labels or {})},
        "ownerReferences": [owner_reference(context)],
    }


def selector(context: JobContext, component: str = keys.CONTAINER_WORKER, **more: str) -> dict[str, str]:
    """Labels that select pods of the job, by default those of its gang, and no others."""
    return {keys.LABEL_JOB: context.name, keys.LABEL_COMPONENT: component, **more}
