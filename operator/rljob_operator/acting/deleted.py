"""Pods of deleted jobs.

Garbage collection deletes them with the grace that they have for a checkpoint, which nobody waits for any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rljob_operator.cluster.api import Object
from rljob_operator.manifests.ownership import is_of_predecessor
from rljob_operator.observing.pods import facts_of_metadata
from rljob_operator.states.situation.situation import Deletion


def hastened(pods: Iterable[Object], job: str, living: str) -> Iterator[Deletion]:
    """What to delete again, with less grace, of pods of jobs of this name that are deleted.

    `living` is the uid of the one that is not; empty where there is none. A pod that nobody deletes yet is left to
    garbage collection: the job may have been deleted without its pods (`kubectl delete --cascade=orphan`).
    """
    for pod in (facts_of_metadata(each) for each in pods if is_of_predecessor(each, job, living)):
        wanted = pod.deletion_grace_seconds
        if wanted is not None and wanted < (pod.grace_seconds or 0):
            yield Deletion(pod.name, pod.uid, wanted)
