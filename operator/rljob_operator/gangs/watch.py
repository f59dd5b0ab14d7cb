"""Workloads of Kueue as they are watched: so the operator hears of jobs that a queue lets in or turns out."""

from __future__ import annotations

from rljob_operator.cluster.api import Object
from rljob_operator.cluster.kinds import WORKLOAD_KUEUE, WORKLOAD_KUEUE_V1BETA2
from rljob_operator.cluster.reflector import drop_bookkeeping

WORKLOADS = (WORKLOAD_KUEUE_V1BETA2, WORKLOAD_KUEUE)
"""Newest first."""


def drop_pod_sets(item: Object) -> None:
    """What the queue says is read from here; the pods that were asked for are most of a Workload, and ours."""
    drop_bookkeeping(item)
    if "spec" in item:  # a bookmark has none
        item["spec"].pop("podSets", None)
