"""What the containers of a pod, and the pod as a whole, ask for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from functools import partial
from typing import Any

from rljob_api.planning.plan import GroupPlan
from rljob_api.vocabulary import keys
from rljob_api.vocabulary.quantity import amount, parse_quantity
from rljob_operator.manifests.context import JobContext, Manifest
from rljob_operator.manifests.pod.merge import without_nulls
from rljob_operator.manifests.pod_security.pod import entries, field_at

ZERO = Decimal(0)


def worker_resources(context: JobContext, group: GroupPlan) -> Manifest:
    """CPUs and memory for every worker process; devices, which are always limits; what else the profile needs."""
    settings, profile, rdma = context.pods.worker, context.profile(group), context.group(group.name).rdma
    num_workers = group.workers_per_host
    devices = dict(profile.resources)
    if profile.resource is not None:
        devices[profile.resource] = str(num_workers)
    if rdma is not None:
        devices[rdma.resource] = str(rdma.count)
    requests = {
        "cpu": times(settings.cpu, num_workers),
        "memory": mebibytes(parse_quantity(settings.memory) * num_workers),
        **devices,
    }
    return {"requests": requests, "limits": devices} if devices else {"requests": requests}


def buffer_resources(context: JobContext) -> Manifest:
    """The arena lies in a memory volume that is charged to the container that writes it, which is this one."""
    settings = context.pods.data_buffer
    arena = parse_quantity(context.spec.data_buffer.memory)
    memory = mebibytes(arena + parse_quantity(settings.memory_overhead))
    requests = {"cpu": settings.cpu, "memory": memory}
    if spills_to_pod_volume(context):
        requests["ephemeral-storage"] = mebibytes(spill_volume_bytes(context))
    return {"requests": requests, "limits": {"memory": memory}}


def spills_to_pod_volume(context: JobContext) -> bool:
    """Whether rows may go to a volume of the pod's own."""
    spill = context.spec.data_buffer.spill
    return spill is not None and spill.directory is None


def spill_volume_bytes(context: JobContext) -> int:
    """The file, which is reserved whole, and what a file system needs to note where it lies: a pod whose volume has
    grown beyond its limit is evicted."""
    spill = context.spec.data_buffer.spill
    assert spill is not None, "asked for a job that does not spill"
    return parse_quantity(spill.limit) * 65 // 64 + (16 << 20)


def threads_per_worker(context: JobContext, group: GroupPlan) -> int:
    """The workers' share of the CPUs that their container asks for, in the template or by default; at least one."""
    requested = template_cpu(context.group(group.name).template, keys.CONTAINER_WORKER)
    cores_per_worker = (
        amount(context.pods.worker.cpu) if requested is None else amount(requested) / group.workers_per_host
    )
    return max(1, math.floor(cores_per_worker))


def template_cpu(template: dict[str, Any], name: str) -> str | None:
    """The CPU request of a container in a user's template."""
    for container in without_nulls(template).get("spec", {}).get("containers", ()):
        if container.get("name") == name:
            resources = container.get("resources", {})
            result = resources.get("requests", {}).get("cpu", resources.get("limits", {}).get("cpu"))
            return None if result is None else str(result)
    return None


def times(quantity: str, factor: int) -> str:
    """A CPU quantity for several workers: `500m` times 3 is `1500m`."""
    return f"{round(amount(quantity) * 1000) * factor}m"


def mebibytes(num_bytes: int) -> str:
    """A quantity of memory, rounded up to whole MiB."""
    return f"{-(-num_bytes // (1 << 20))}Mi"


def effective(spec: Mapping[str, Any], asked: Callable[[Mapping[str, Any]], Decimal]) -> Decimal:
    """What a pod as a whole asks for, as the scheduler and quotas count it.

    `asked` says it of a container, or of the pod's own `resources`.
    Init containers run one after the other, beside the sidecars that were started before them.
    """
    sidecars = peak = ZERO
    for entry in entries(spec, "initContainers"):
        number = asked(entry)
        is_sidecar = entry.get("restartPolicy") == "Always"
        sidecars += number if is_sidecar else ZERO
        peak = max(peak, sidecars if is_sidecar else sidecars + number)
    together = sidecars + sum((asked(entry) for entry in entries(spec, "containers")), ZERO)
    return max(peak, together, asked(spec))


def quota_requests(spec: Mapping[str, Any]) -> dict[str, Decimal]:
    """By each name under which a ResourceQuota may bound it: `pods`, `cpu`, `requests.cpu`, `limits.memory`."""
    result = {"pods": Decimal(1), "count/pods": Decimal(1)}
    for name in resource_names(spec):
        requested = effective(spec, partial(_request, name=name))
        limited = effective(spec, partial(_number, kind="limits", name=name))
        result |= {name: requested, f"requests.{name}": requested, f"limits.{name}": limited}
    return result


def resource_names(spec: Mapping[str, Any]) -> Iterable[str]:
    """Each resource that a container, or the pod as a whole, requests or limits; once, in the order of the pod."""
    askers = (*entries(spec, "initContainers"), *entries(spec, "containers"), spec)
    result = (field_at(asker, "resources", kind) or () for asker in askers for kind in ("requests", "limits"))
    return dict.fromkeys(str(name) for names in result for name in names)


def _request(asker: Mapping[str, Any], name: str) -> Decimal:
    """The API server takes a limit for the request that is not there."""
    kind = "limits" if field_at(asker, "resources", "requests", name) is None else "requests"
    return _number(asker, kind, name)


def _number(asker: Mapping[str, Any], kind: str, name: str) -> Decimal:
    quantity: Any = field_at(asker, "resources", kind, name)
    return ZERO if quantity is None else amount(str(quantity))
