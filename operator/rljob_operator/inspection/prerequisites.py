"""Reads what a job needs of its surroundings."""

from __future__ import annotations

import logging

from rljob_operator.cluster.api import Cluster, Object, list_pages
from rljob_operator.cluster.errors import Forbidden
from rljob_operator.cluster.kinds import RESOURCE_QUOTA, STORAGE_CLASS, ResourceKind
from rljob_operator.inspection.preflight import (
    Need,
    image_problem,
    needs,
    size_problem,
    waits_for_a_pod,
)
from rljob_operator.inspection.quotas import quota_problem
from rljob_operator.manifests.context import JobContext
from rljob_operator.states import Refusal
from rljob_operator.states.situation.conditions import Reason

logger = logging.getLogger(__name__)


async def unmet_prerequisite(cluster: Cluster, context: JobContext) -> Refusal | None:
    """Why no pod of the job may be made; None when nothing is in the way.

    What the operator may not read it cannot check: then the pods are made, and kubelets say what is missing.
    """
    if (result := size_problem(context)) is not None:
        return result
    for need in needs(context):
        try:
            refusal = await _refusal(cluster, context.namespace, need)
        except Forbidden as error:
            logger.info("not checked: %s", error)
            continue
        if refusal is not None:
            return refusal
    return image_problem(context) or await _refusal_by_quotas(cluster, context)


async def _refusal_by_quotas(cluster: Cluster, context: JobContext) -> Refusal | None:
    try:
        listed = [item async for page in list_pages(cluster, RESOURCE_QUOTA, context.namespace) for item in page.items]
    except Forbidden as error:
        logger.info("not checked: %s", error)
        return None
    return quota_problem(context, listed)


async def _refusal(cluster: Cluster, namespace: str, need: Need) -> Refusal | None:
    result = await _get(cluster, need.kind, namespace, need.name)
    refusal = need.problem(result)
    if refusal is None or result is None or refusal.reason is not Reason.STORAGE_CLAIM_NOT_BOUND:
        return refusal
    storage_class = result["spec"].get("storageClassName")
    waits = bool(storage_class) and waits_for_a_pod(await _get(cluster, STORAGE_CLASS, namespace, storage_class))
    return None if waits else refusal


async def _get(cluster: Cluster, kind: ResourceKind, namespace: str, name: str) -> Object | None:
    return await cluster.get(kind, namespace if kind.namespaced else None, name)
