"""What Kueue is asked for, field by field, and what of it is brought up to date."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from rljob_operator.gangs.kueue.workload import (
    QueuePriority,
    pod_set,
    priority_fields,
    renewal,
    workload,
)
from rljob_operator.manifests import pods
from rljob_operator.manifests.context import JobContext, is_queued, queue_of
from rljob_operator.manifests.metadata import metadata
from rljob_operator.manifests.tests.builders import TWO_GROUPS, UID, make_context, one_group
from rljob_operator.names import host_name

V1BETA1, V1BETA2 = "kueue.x-k8s.io/v1beta1", "kueue.x-k8s.io/v1beta2"
QUEUE, CLASS = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"
URGENT = QueuePriority("WorkloadPriorityClass", "urgent", 7)
HIGH = QueuePriority("PriorityClass", "high", 1000)


def live_workload(*, has_quota: bool = False, is_finished: bool = False, **spec: Any) -> dict[str, Any]:
    """A Workload in queue `rl`, as the API server has it."""
    made = copy.deepcopy(workload(make_context(labels={QUEUE: "rl"}), V1BETA2, HIGH))
    finished = [{"type": "Finished", "status": "True"}] if is_finished else []
    status = {"conditions": finished, **({"admission": {}} if has_quota else {})}
    return {**made, "spec": {**made["spec"], **spec}, "status": status}


def test_a_workload_from_top_to_bottom() -> None:
    context = make_context(TWO_GROUPS, labels={QUEUE: "rl"})
    made = workload(context, V1BETA2, URGENT)
    assert made == {
        "apiVersion": V1BETA2,
        "kind": "Workload",
        "metadata": metadata(context, "rljob-small", "workload", {"kueue.x-k8s.io/job-uid": UID}),
        "spec": {
            "podSets": [pod_set(context, group) for group in context.plan.groups],
            "queueName": "rl",
            "priorityClassRef": {"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": "urgent"},
            "priority": 7,
        },
    }
    assert set(workload(make_context(), V1BETA2, None)["spec"]) == {"podSets"}


@pytest.mark.parametrize(
    ("priority", "version", "fields"),
    [
        (
            URGENT,
            V1BETA1,
            {
                "priorityClassName": "urgent",
                "priorityClassSource": "kueue.x-k8s.io/workloadpriorityclass",
                "priority": 7,
            },
        ),
        (
            HIGH,
            V1BETA1,
            {"priorityClassName": "high", "priorityClassSource": "scheduling.k8s.io/priorityclass", "priority": 1000},
        ),
        (
            HIGH,
            V1BETA2,
            {
                "priorityClassRef": {"group": "scheduling.k8s.io", "kind": "PriorityClass", "name": "high"},
                "priority": 1000,
            },
        ),
    ],
)
def test_how_a_priority_class_is_named(priority: QueuePriority, version: str, fields: dict[str, Any]) -> None:
    assert priority_fields(priority, version) == fields


@pytest.mark.parametrize(
    ("labels", "overrides", "queued", "queue"),
    [
        ({}, (), False, None),
        ({QUEUE: "rl"}, (), True, "rl"),
        ({}, ("scheduling={provider: Kueue}",), True, None),
        ({}, ("scheduling={provider: Kueue, queue: mine}",), True, "mine"),
        ({QUEUE: "rl"}, ("scheduling={provider: Kueue, queue: mine}",), True, "rl"),
        ({CLASS: "urgent"}, ("scheduling={provider: Volcano, queue: mine}",), False, "mine"),
    ],
)
def test_which_queue(labels: dict[str, str], overrides: tuple[str, ...], queued: bool, queue: str | None) -> None:
    context = make_context(*overrides, labels=labels)
    assert (is_queued(context), queue_of(context)) == (queued, queue)


def wanted_in(queue: str, priority: QueuePriority | None = HIGH) -> dict[str, Any]:
    return workload(make_context(labels={QUEUE: queue}), V1BETA2, priority)


@pytest.mark.parametrize(
    ("live", "wanted"),
    [
        (live_workload(), wanted_in("rl")),
        (live_workload(priority=1, is_finished=True), wanted_in("other")),
        (live_workload(has_quota=True), wanted_in("other")),
        (live_workload(), wanted_in("rl", None)),
    ],
    ids=["nothing changed", "it is over", "with quota it keeps its queue", "a class that cannot be read"],
)
def test_what_stays_as_it_is(live: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert renewal(live, wanted) is None


def test_what_is_brought_up_to_date() -> None:
    about = {"name": "rljob-small", "namespace": "team"}
    priority = priority_fields(HIGH, V1BETA2)
    head = {"apiVersion": V1BETA2, "kind": "Workload", "metadata": about}
    moved = {**head, "spec": {**priority, "queueName": "other"}}
    assert renewal(live_workload(), wanted_in("other")) == moved
    without_status = {name: value for name, value in live_workload().items() if name != "status"}
    assert renewal(without_status, wanted_in("other")) == moved
    raised = live_workload(has_quota=True, priority=1)
    assert renewal(raised, wanted_in("other")) == {**head, "spec": priority}
    assert renewal({**live_workload(), "spec": {}}, wanted_in("rl")) == {
        **head,
        "spec": {**priority, "queueName": "rl"},
    }


def test_a_pod_set_is_a_pod_without_what_is_its_own() -> None:
    context = make_context(TWO_GROUPS)
    train = context.plan.groups[0]
    rendered = pods(context, 1)[0]
    labels = dict(rendered["metadata"]["labels"])
    assert (labels.pop("rljob.dev/attempt"), labels.pop("rljob.dev/host-index")) == ("1", "0")
    spec = dict(rendered["spec"])
    assert spec.pop("hostname") == host_name("small", "train", 0) and spec.pop("subdomain") == "small"
    assert pod_set(context, train) == {
        "name": "train",
        "count": 2,
        "template": {"metadata": {"labels": labels}, "spec": spec},
    }


@pytest.mark.parametrize(
    ("topology", "request_"),
    [
        ({"required": "rack"}, {"required": "rack", "podIndexLabel": "rljob.dev/host-index"}),
        ({"preferred": "rack"}, {"preferred": "rack", "podIndexLabel": "rljob.dev/host-index"}),
        (None, None),
    ],
)
def test_where_pods_are_to_stand_together(topology: dict[str, str] | None, request_: dict[str, str] | None) -> None:
    context = make_context(one_group(**({} if topology is None else {"topology": topology})))
    assert pod_set(context, context.plan.groups[0]).get("topologyRequest") == request_


def service_context() -> JobContext:
    return make_context("services=[{name: my_judge, run: 'mine:app'}]")


def test_a_model_is_a_set_of_one_pod_whichever_start_it_is() -> None:
    result = workload(service_context(), V1BETA2, None)["spec"]["podSets"][1]
    assert (result["name"], result["count"], set(result)) == ("service-my-judge", 1, {"name", "count", "template"})
    assert "rljob.dev/attempt" not in result["template"]["metadata"]["labels"]


@pytest.mark.parametrize(
    ("settings", "sets"),
    [
        # one pod with both copies; or a pod for each, and a head that has none
        ({}, {"service-my-judge": (1, "4")}),
        ({"rayServices": True}, {"service-my-judge--head": (1, None), "service-my-judge": (2, "2")}),
    ],
)
def test_accelerators_of_models_are_quota(settings: dict[str, Any], sets: dict[str, tuple[int, str | None]]) -> None:
    fields = "options: {path: m}, workerGroup: {replicas: 2, accelerator: {profile: nvidia, count: 2}}"
    context = make_context(
        f"services=[{{name: my_judge, run: 'rljob_worker.services:reward_model', {fields}}}]", settings=settings
    )
    result = {}
    for item in workload(context, V1BETA2, None)["spec"]["podSets"][1:]:
        (container,) = item["template"]["spec"]["containers"]
        result[item["name"]] = (item["count"], container["resources"]["requests"].get("nvidia.com/gpu"))
    assert result == sets
