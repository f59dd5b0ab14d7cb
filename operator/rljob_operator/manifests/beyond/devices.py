"""How many devices a pod asks for, as the scheduler counts them."""

from __future__ import annotations

import math
from collections.abc import Collection
from decimal import Decimal
from typing import Any

from rljob_api.vocabulary.quantity import amount
from rljob_operator.manifests.pod.effective import effective, resource_names
from rljob_operator.manifests.pod_security.pod import Manifest, at


def devices(spec: Manifest, known: Collection[str], exempt: Collection[str]) -> dict[str, int]:
    """Devices of a pod by resource: `known` ones and every extended resource that is not `exempt`."""
    names = resource_names(spec)
    counted = [name for name in names if not _is_exempt(name, exempt) and (name in known or _is_extended(name))]
    return {name: number for name in counted if (number := _effective(spec, name))}


def _effective(spec: Manifest, name: str) -> int:
    return int(effective(spec, lambda asker: Decimal(_asked(asker, name))))


def _asked(asker: Manifest, name: str) -> int:
    """The larger of request and limit, whole, which the API server wants to be the same."""
    return max(_whole(at(asker, "resources", kind, name)) for kind in ("requests", "limits"))


def _whole(quantity: Any) -> int:
    return 0 if quantity is None else max(0, math.ceil(amount(str(quantity))))


def _is_extended(name: str) -> bool:
    return "/" in name and "kubernetes.io/" not in name


def _is_exempt(name: str, exempt: Collection[str]) -> bool:
    return any(name == each or (each.endswith("/") and name.startswith(each)) for each in exempt)
