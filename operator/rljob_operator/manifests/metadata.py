"""Metadata of children: whose they are, and by which labels everybody finds them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rljob_api.vocabulary import keys
from rljob_operator.manifests.context import JobContext, Manifest

Object = Mapping[str, Any]


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


def controller(child: Object) -> Object:
    """The owner reference that controls the child; empty when nobody does."""
    owners = child["metadata"].get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), {})


def is_child_of(child: Object, job_uid: str) -> bool:
    """Whether the job of this uid controls the object."""
    return controller(child).get("uid") == job_uid


def is_of_predecessor(child: Object, job: str, job_uid: str) -> bool:
    """Whether an earlier job of the same name controls it; garbage collection is about to delete it."""
    owner = controller(child)
    return owner.get("kind") == keys.KIND and owner.get("name") == job and owner.get("uid") != job_uid
