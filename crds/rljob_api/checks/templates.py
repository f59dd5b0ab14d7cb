"""Does a pod template leave alone what makes the pods a gang?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rljob_api.checks.shapes import shape_problems
from rljob_api.checks.subject import Subject, problem
from rljob_api.vocabulary import keys
from rljob_api.vocabulary.images import IMAGE_FORM, is_image
from rljob_api.vocabulary.problem import Problem, suggestion

OWN_LABEL_PREFIX = f"{keys.GROUP}/"
OWN_VOLUMES = frozenset({"plan", "token", "tls", "socket", "arena"})

_OWN_FIELDS: Mapping[str, tuple[str, str]] = {
    "hostname": ("pods find each other by it", "Leave it out."),
    "subdomain": ("pods find each other by it", "Leave it out."),
    "restartPolicy": ("the operator restarts pods, all of them together", "Write spec.failurePolicy instead."),
    "terminationGracePeriodSeconds": (
        "the operator counts with it",
        "Write spec.lifecycle.terminationGraceSeconds instead.",
    ),
    "priorityClassName": ("the whole gang has one", "Write spec.scheduling.priorityClassName instead."),
}
"""Fields of a pod that the operator must be sure of: why, and what to write."""

_FIELDS = ("metadata", "spec")
_LISTS = ("containers", "initContainers", "volumes")

_OF_GROUPS: Mapping[str, str] = {keys.CONTAINER_BUFFER: "initContainers", keys.CONTAINER_WORKER: "containers"}
"""Containers of a worker group's pods, and in which list they are."""
_OF_SERVICES: Mapping[str, str] = {keys.CONTAINER_SERVICE: "containers"}
_OF_AGENTS: Mapping[str, str] = {keys.CONTAINER_AGENT: "containers"}


def check_templates(subject: Subject) -> Iterator[Problem]:
    """What a user's template may not override."""
    for i, group in enumerate(subject.spec.worker_groups):
        yield from template_problems(group.template, f"spec.workerGroups[{i}].template", _OF_GROUPS)
    for i, service in enumerate(subject.spec.services):
        template = service.worker_group.template
        yield from template_problems(template, f"spec.services[{i}].workerGroup.template", _OF_SERVICES)
    if (agents := subject.spec.agent_group) is not None:
        path = "spec.rollout.conversation.agentPool.workerGroup.template"
        yield from template_problems(agents.template, path, _OF_AGENTS)
        if not _has_image(agents.template):
            message = f"pods of agents have an image of yours, and container {keys.CONTAINER_AGENT} names none"
            fix = f"Write spec: {{containers: [{{name: {keys.CONTAINER_AGENT}, image: ...}}]}}."
            yield problem(path, None, message, fix)


def _has_image(template: Mapping[str, Any]) -> bool:
    """Whether the container of agents has one."""
    spec = template.get("spec")
    entries = _entries(spec, "containers") if isinstance(spec, Mapping) else []
    return any(
        isinstance(item, Mapping) and item.get("name") == keys.CONTAINER_AGENT and bool(item.get("image"))
        for item in entries
    )


def check_own_variables(subject: Subject) -> Iterator[Problem]:
    """Variables that say who a pod is."""
    for i, variable in enumerate(subject.spec.env):
        yield from _own_variable(f"spec.env[{i}].name", variable.name)


def template_problems(template: Mapping[str, Any], path: str, ours: Mapping[str, str]) -> Iterator[Problem]:
    """Every problem of one template, which stands at `path`, of a pod with these containers of ours."""
    for name in template:
        if name not in _FIELDS:
            message = "a pod template has metadata and spec"
            yield problem(f"{path}.{name}", None, message, suggestion(name, _FIELDS))
    metadata, spec = template.get("metadata") or {}, template.get("spec") or {}
    for name, result in (("metadata", metadata), ("spec", spec)):
        if not isinstance(result, Mapping):
            yield problem(f"{path}.{name}", result, "this is not a mapping", "Write it as in a Pod.")
    yield from shape_problems(template, path)
    if isinstance(metadata, Mapping):
        yield from _metadata(metadata, f"{path}.metadata")
    if isinstance(spec, Mapping):
        yield from _spec(spec, f"{path}.spec", ours)


def _metadata(metadata: Mapping[str, Any], path: str) -> Iterator[Problem]:
    for name in metadata:
        if name not in ("labels", "annotations"):
            fix = "Write labels and annotations only."
            yield problem(f"{path}.{name}", metadata[name], "the operator gives pods their names and owners", fix)
    labels = metadata.get("labels") or {}
    for label in labels if isinstance(labels, Mapping) else ():
        if label.startswith(OWN_LABEL_PREFIX) or label == keys.LABEL_MANAGED_BY:
            yield problem(f"{path}.labels", label, "the operator finds its pods by this label", "Choose another label.")


def _spec(spec: Mapping[str, Any], path: str, ours: Mapping[str, str]) -> Iterator[Problem]:
    for name, (why, fix) in _OWN_FIELDS.items():
        if name in spec:
            yield problem(f"{path}.{name}", spec[name], f"a template cannot set this: {why}", fix)
    for name in _LISTS:
        for i, entry in enumerate(_entries(spec, name)):
            place = f"{path}.{name}[{i}]"
            if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
                yield problem(place, entry, "an entry of this list has a name, by which it is merged", "Give it one.")
            elif name != "volumes":
                yield from _container(entry, name, place, ours)
            elif entry["name"] in OWN_VOLUMES:
                message = "workers and data buffer meet on the volume of this name"
                yield problem(f"{place}.name", entry["name"], message, "Choose another name.")


def _container(container: Mapping[str, Any], field: str, path: str, ours: Mapping[str, str]) -> Iterator[Problem]:
    name = container["name"]
    if ours.get(name, field) != field:
        right = ours[name]
        yield problem(f"{path}.name", name, f"this container is one of {right}", f"Move the entry to {right}.")
    if name in {*_OF_GROUPS, *_OF_SERVICES} - ours.keys():
        fix = f"Write {' or '.join(ours)}, or give a container of your own another name."
        yield problem(f"{path}.name", name, "pods of this kind have no such container", fix)
    if name == keys.CONTAINER_BUFFER and "restartPolicy" in container:
        message = "the data buffer is a sidecar because of its restart policy"
        yield problem(f"{path}.restartPolicy", container["restartPolicy"], message, "Leave it out.")
    image = container.get("image")
    if isinstance(image, str) and not is_image(image):
        yield problem(f"{path}.image", image, IMAGE_FORM, "Copy the digest as the registry says it, or write a tag.")
    if name in ours:
        for i, variable in enumerate(_entries(container, "env")):
            if isinstance(variable, Mapping):
                yield from _own_variable(f"{path}.env[{i}].name", str(variable.get("name")))


def _own_variable(path: str, name: str) -> Iterator[Problem]:
    if name in keys.RANK_ENVIRONMENT:
        message = "every worker has a rank of its own, and libraries that find this variable would believe it"
        yield problem(path, name, message, "Leave it out; workers find each other without it.")
    elif name in keys.OWN_ENVIRONMENT:
        message = "a process learns from this variable which one it is"
        yield problem(path, name, message, "Leave it out, or choose another name for a variable of your own.")
    elif name.startswith(keys.OWN_PREFIX) and name not in keys.OPEN_ENVIRONMENT:
        message = f"variables that begin with {keys.OWN_PREFIX} are how rljob's processes inform each other"
        fix = f"{suggestion(name, sorted(keys.OPEN_ENVIRONMENT))} A variable of your own has another name."
        yield problem(path, name, message, fix)


def _entries(mapping: Mapping[str, Any], name: str) -> list[Any]:
    result = mapping.get(name)
    return result if isinstance(result, list) else []
