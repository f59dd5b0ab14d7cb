"""A whole job held against the ceilings: its pods one by one, their accelerators together, and its queue."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from decimal import Decimal
from functools import partial
from typing import Any

from rljob_api.vocabulary.quantity import amount
from rljob_operator.manifests.agents import agents_pod
from rljob_operator.manifests.ceilings import Ceilings
from rljob_operator.manifests.context import QUEUE_LABEL, JobContext, queue_of
from rljob_operator.manifests.pod.pods import pod
from rljob_operator.manifests.pod.resources import effective, resource_names
from rljob_operator.manifests.pod_security.pod import Manifest, entries, field_at
from rljob_operator.manifests.serving.kinds import kinds_of_pods
from rljob_operator.manifests.violations.pods import pod_violations, unlisted


def job_violations(ceilings: Ceilings, context: JobContext) -> list[str]:
    """What of a job goes beyond the ceilings, pod by pod; empty where nothing does."""
    queue = list(_queue(context))
    if ceilings.bounds_pods:
        pods = list(_pods(context))
        queue += _accelerators(ceilings, context, pods)
        for owner, _, rendered in pods:
            queue += [f"{owner}: {pod_violation}" for pod_violation in pod_violations(ceilings, context, rendered)]
    return list(dict.fromkeys(queue))


def _pods(context: JobContext) -> Iterator[tuple[str, int, Manifest]]:
    """Whose, how many, and one of them, of every kind of pod that the job has."""
    for group in context.plan.groups:
        yield f"worker group {group.name}", group.replicas, pod(context, group, 0, 1)
    for service in context.spec.services:
        for kind in kinds_of_pods(context, service):
            yield f"service {service.name}", kind.count, kind.pod
    if (agents := context.spec.agent_group) is not None:
        yield "agents", agents.replicas, agents_pod(context, agents, 1)


def _accelerators(ceilings: Ceilings, context: JobContext, pods: Iterable[tuple[str, int, Manifest]]) -> Iterator[str]:
    """As many as pods ask for, by a profile or by a template: those of services with those of the gang."""
    if ceilings.accelerators is None:
        return
    known = {profile.resource for profile in context.profiles.values() if profile.resource is not None}
    asked: Counter[str] = Counter()
    for owner, count, rendered in pods:
        for name, number in devices(rendered["spec"], known, ceilings.not_accelerators).items():
            asked[name] += count * number
        for claim in entries(rendered["spec"], "resourceClaims"):
            yield f"{owner}: resource claim {claim.get('name')}, whose devices cannot be counted (accelerators)"
    if asked.total() > ceilings.accelerators:
        names = ", ".join(f"{number} {name}" for name, number in asked.items())
        yield f"{asked.total()} accelerators ({names}), and a job may have {ceilings.accelerators} (accelerators)"


def _queue(context: JobContext) -> Iterator[str]:
    rules, provider, queue = context.queues, context.spec.scheduling.provider, queue_of(context)
    if rules.required and provider not in ("Auto", "Kueue"):
        yield f"scheduling.provider {provider}, and every job waits in a queue of Kueue: write Auto (queues.required)"
    elif rules.required and queue is None:
        yield f"no queue, and every job waits in one: name it in the label {QUEUE_LABEL} (queues.required)"
    if rules.names is not None and queue is not None and provider in ("Auto", "Kueue"):
        yield from unlisted("queue", queue, (*rules.names, rules.default), "queues.names")


def devices(spec: Manifest, known: Collection[str], exempt: Collection[str]) -> dict[str, int]:
    """Devices that a pod asks for, as the scheduler counts them, by resource: `known` ones and every extended resource
    that is not `exempt`."""
    names = resource_names(spec)
    counted = [name for name in names if not _is_exempt(name, exempt) and (name in known or _is_extended(name))]
    return {name: number for name in counted if (number := int(effective(spec, partial(_devices_asked, name=name))))}


def _devices_asked(asker: Manifest, name: str) -> Decimal:
    """The larger of request and limit, whole, which the API server wants to be the same."""
    return Decimal(max(_whole(field_at(asker, "resources", kind, name)) for kind in ("requests", "limits")))


def _whole(quantity: Any) -> int:
    return 0 if quantity is None else max(0, math.ceil(amount(str(quantity))))


def _is_extended(name: str) -> bool:
    return "/" in name and "kubernetes.io/" not in name


def _is_exempt(name: str, exempt: Collection[str]) -> bool:
    return any(name == item or (item.endswith("/") and name.startswith(item)) for item in exempt)
