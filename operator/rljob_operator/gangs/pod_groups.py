"""What the pod groups of all schedulers have in common: a name, a size, what they need together."""

from __future__ import annotations

from decimal import Decimal

from rljob_api.vocabulary import keys
from rljob_api.vocabulary.quantity import amount
from rljob_operator import names
from rljob_operator.manifests.context import JobContext, Manifest
from rljob_operator.manifests.metadata import metadata
from rljob_operator.manifests.pod.pods import pod


def pod_group(context: JobContext, attempt: int, api_version: str, spec: Manifest) -> Manifest:
    """A PodGroup of an attempt: its pods are other pods than those of the attempt before."""
    name = names.pod_group_name(context.name, attempt)
    labels = {keys.LABEL_ATTEMPT: str(attempt)}
    return {
        "apiVersion": api_version,
        "kind": "PodGroup",
        "metadata": metadata(context, name, "pod-group", labels),
        "spec": spec,
    }


def attempt_of(manifest: Manifest) -> int:
    """The attempt that a child belongs to."""
    return int(manifest["metadata"]["labels"][keys.LABEL_ATTEMPT])


def total_requests(context: JobContext) -> dict[str, str]:
    """What all pods of the job ask for together, sidecars included."""
    totals: dict[str, Decimal] = {}
    for group in context.plan.groups:
        spec = pod(context, group, 0, 1)["spec"]
        sidecars = (each for each in spec.get("initContainers", ()) if each.get("restartPolicy") == "Always")
        for container in (*sidecars, *spec["containers"]):
            resources = container.get("resources", {})
            for name, quantity in {**resources.get("limits", {}), **resources.get("requests", {})}.items():
                totals[name] = totals.get(name, Decimal(0)) + group.replicas * amount(quantity)
    return {name: _written(total) for name, total in sorted(totals.items())}


def _written(total: Decimal) -> str:
    """A whole number, or thousandths."""
    return str(int(total)) if total == total.to_integral_value() else f"{int(total * 1000)}m"
