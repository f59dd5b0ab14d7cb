"""What attempts that are over and jobs that are deleted leave behind: plans, rank tables, pods.

Certificates, which nobody trusts any more, stay until the job goes: deleting them takes a right over all Secrets.
Garbage collection deletes pods with the grace that they have for a checkpoint, which nobody waits for any more.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from rljob_api.vocabulary import keys
from rljob_operator import names
from rljob_operator.acting.children import Children
from rljob_operator.cluster.api import Cluster, Object, list_pages
from rljob_operator.cluster.errors import Forbidden
from rljob_operator.cluster.kinds import CONFIG_MAP
from rljob_operator.manifests.configmaps import rank_tables
from rljob_operator.manifests.context import JobContext
from rljob_operator.manifests.metadata import is_of_predecessor
from rljob_operator.observing.pods import facts_of_metadata
from rljob_operator.states.situation.situation import Deletion

logger = logging.getLogger(__name__)

_COMPONENTS = ("plan", "rank-table")


async def drop_leftovers(cluster: Cluster, children: Children, context: JobContext, attempt: int) -> None:
    """Delete them before the pods of `attempt` are made; an operator that may not leaves them for the job's end."""
    try:
        await _drop_config_maps(cluster, children, context, attempt)
    except Forbidden as error:
        logger.info("left for the end of the job: %s", error)


async def _drop_config_maps(cluster: Cluster, children: Children, context: JobContext, attempt: int) -> None:
    wanted = {names.plan_config_map_name(context.name, context.plan_hash)}
    wanted |= {rank_table["metadata"]["name"] for rank_table in rank_tables(context, attempt)}
    async for page in list_pages(cluster, CONFIG_MAP, context.namespace, labels=f"{keys.LABEL_JOB}={context.name}"):
        for item in page.items:
            metadata = item["metadata"]
            if metadata["labels"].get(keys.LABEL_COMPONENT) in _COMPONENTS and metadata["name"] not in wanted:
                await children.delete_of(CONFIG_MAP, item)


def hastened(pods: Iterable[Object], job: str, living: str) -> Iterator[Deletion]:
    """What to delete again, with less grace, of pods of jobs of this name that are deleted.

    `living` is the uid of the one that is not; empty where there is none. A pod that nobody deletes yet is left to
    garbage collection: the job may have been deleted without its pods (`kubectl delete --cascade=orphan`).
    """
    for pod in (facts_of_metadata(pod) for pod in pods if is_of_predecessor(pod, job, living)):
        wanted = pod.deletion_grace_seconds
        if wanted is not None and wanted < (pod.grace_seconds or 0):
            yield Deletion(pod.name, pod.uid, wanted)
