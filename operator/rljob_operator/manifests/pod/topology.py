"""Which nodes a worker group's pods should, or must, share."""

from __future__ import annotations

from rljob_api.planning.plan import GroupPlan
from rljob_api.vocabulary import keys
from rljob_operator.manifests.context import JobContext, Manifest
from rljob_operator.manifests.metadata import selector

HOST_NAME = "kubernetes.io/hostname"


def affinity(context: JobContext, group: GroupPlan, attempt: int) -> Manifest:
    """Pods of a group near each other, as `topology` says, and away from nodes to avoid; empty when neither is said."""
    return {**_near_each_other(context, group, attempt), **_away_from(context.avoided_nodes)}


def _away_from(nodes: tuple[str, ...]) -> Manifest:
    """A preference: where no other node is left, a suspected one may do."""
    if not nodes:
        return {}
    others = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes]
    term = {"weight": 100, "preference": {"matchFields": others}}
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term]}}


def _near_each_other(context: JobContext, group: GroupPlan, attempt: int) -> Manifest:
    """Only pods of the same attempt attract: those that are still leaving would hold the new ones to their nodes."""
    topology = context.group(group.name).topology
    if topology is None:
        return {}
    labels = _pods_of(context, group, attempt)
    if topology.required is not None:
        term = {"topologyKey": label_key(context, topology.required), "labelSelector": {"matchLabels": labels}}
        return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    if topology.preferred is not None:
        term = {"topologyKey": label_key(context, topology.preferred), "labelSelector": {"matchLabels": labels}}
        weighted = {"weight": 100, "podAffinityTerm": term}
        return {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [weighted]}}
    return {}


def spread_constraint(context: JobContext, group: GroupPlan, attempt: int) -> Manifest:
    """One pod per host where there are enough hosts."""
    return {
        "maxSkew": 1,
        "topologyKey": HOST_NAME,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": _pods_of(context, group, attempt)},
    }


def label_key(context: JobContext, name: str) -> str:
    """A node label, or what an administrator's alias stands for."""
    return context.pods.topology_aliases.get(name, name)


def _pods_of(context: JobContext, group: GroupPlan, attempt: int) -> dict[str, str]:
    return selector(context, **{keys.LABEL_GROUP: group.name, keys.LABEL_ATTEMPT: str(attempt)})
