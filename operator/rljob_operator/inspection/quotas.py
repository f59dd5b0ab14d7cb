"""Whether a gang fits into what the namespace's ResourceQuotas leave.  Pure.

Admission sees one pod at a time: without this, pods would be made until one is refused, and take places in vain.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any

from rljob_api.vocabulary.quantity import amount
from rljob_operator.manifests.context import JobContext
from rljob_operator.manifests.pod.pods import pod
from rljob_operator.manifests.pod.resources import quota_requests
from rljob_operator.states import Refusal
from rljob_operator.states.situation.conditions import Reason

Object = Mapping[str, Any]
Amounts = Mapping[str, Decimal]


def asked_for(context: JobContext) -> Amounts:
    """What all pods of an attempt ask for together."""
    total: dict[str, Decimal] = {}
    for group in context.plan.gang:
        for name, number in quota_requests(pod(context, group, 0, 1)["spec"]).items():
            total[name] = total.get(name, Decimal(0)) + number * group.replicas
    return total


def quota_problem(context: JobContext, quotas: Iterable[Object]) -> Refusal | None:
    """What the gang lacks, of the first quota that does not leave it enough."""
    wanted = asked_for(context)
    lacks = (lack for quota in quotas for lack in _lacks(quota, wanted))
    result = next(lacks, None)
    if result is None:
        return None
    return Refusal(
        Reason.QUOTA_EXCEEDED,
        f"{result}, and the {context.num_pods} pods of the gang do not fit into the rest together: none is made until "
        f"they do; delete other pods of namespace {context.namespace}, or have the quota raised",
    )


def _lacks(quota: Object, wanted: Amounts) -> Iterator[str]:
    """A quota with scopes is of some pods only, and left to the API server."""
    spec, status = quota.get("spec") or {}, quota.get("status") or {}
    if spec.get("scopes") or spec.get("scopeSelector"):
        return
    hard, used = status.get("hard") or {}, status.get("used") or {}
    for name, number in wanted.items():
        if name in hard and number > _left(hard[name], used.get(name, "0")):
            what = f"{used.get(name, 0)} of {hard[name]} {name} are used"
            yield f"ResourceQuota {quota['metadata']['name']}: {what}"


def _left(hard: Any, used: Any) -> Decimal:
    """No bound where it is larger than what Kubernetes counts."""
    try:
        return max(amount(hard) - amount(used), Decimal(0))
    except ValueError:
        return Decimal("Infinity")
