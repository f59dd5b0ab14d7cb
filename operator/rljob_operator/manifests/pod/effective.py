"""What a pod as a whole asks for, as the scheduler and quotas count it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from decimal import Decimal
from functools import partial
from typing import Any

from rljob_api.vocabulary.quantity import amount
from rljob_operator.manifests.pod_security.pod import Manifest, at, entries

ZERO = Decimal(0)


def effective(spec: Manifest, asked: Callable[[Manifest], Decimal]) -> Decimal:
    """Of a pod, where `asked` says it of a container, or of the pod's own `resources`.

    Init containers run one after the other, beside the sidecars that were started before them.
    """
    sidecars = peak = ZERO
    for each in entries(spec, "initContainers"):
        number = asked(each)
        is_sidecar = each.get("restartPolicy") == "Always"
        sidecars += number if is_sidecar else ZERO
        peak = max(peak, sidecars if is_sidecar else sidecars + number)
    together = sidecars + sum((asked(each) for each in entries(spec, "containers")), ZERO)
    return max(peak, together, asked(spec))


def in_words_of_quotas(spec: Manifest) -> dict[str, Decimal]:
    """By each name under which a ResourceQuota may bound it: `pods`, `cpu`, `requests.cpu`, `limits.memory`."""
    found = {"pods": Decimal(1), "count/pods": Decimal(1)}
    for name in resource_names(spec):
        requested = effective(spec, partial(_request, name=name))
        limited = effective(spec, partial(_number, kind="limits", name=name))
        found |= {name: requested, f"requests.{name}": requested, f"limits.{name}": limited}
    return found


def resource_names(spec: Manifest) -> Iterable[str]:
    """Each resource that a container, or the pod as a whole, requests or limits; once, in the order of the pod."""
    askers = (*entries(spec, "initContainers"), *entries(spec, "containers"), spec)
    found = (at(asker, "resources", kind) or () for asker in askers for kind in ("requests", "limits"))
    return dict.fromkeys(str(name) for names in found for name in names)


def _request(asker: Manifest, name: str) -> Decimal:
    """The API server takes a limit for the request that is not there."""
    kind = "limits" if at(asker, "resources", "requests", name) is None else "requests"
    return _number(asker, kind, name)


def _number(asker: Manifest, kind: str, name: str) -> Decimal:
    quantity: Any = at(asker, "resources", kind, name)
    return ZERO if quantity is None else amount(str(quantity))
