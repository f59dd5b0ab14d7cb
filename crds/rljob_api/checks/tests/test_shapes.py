"""Shapes of pod templates."""

from typing import Any

import pytest

from rljob_api.checks.shapes import shape_problems


def places(template: dict[str, Any]) -> list[str]:
    return [shape_problem.path for shape_problem in shape_problems(template, "template")]


def worker(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "worker", **fields}]}}


WORKER = "template.spec.containers[0]"


@pytest.mark.parametrize(
    ("template", "place"),
    [
        ({"metadata": {"labels": ["a"]}}, "template.metadata.labels"),
        ({"metadata": {"annotations": {"a": 1}}}, "template.metadata.annotations.a"),
        ({"spec": {"containers": {"name": "worker"}}}, "template.spec.containers"),
        ({"spec": {"tolerations": ["x"]}}, "template.spec.tolerations[0]"),
        ({"spec": {"tolerations": [{"key": ["x"]}]}}, "template.spec.tolerations[0].key"),
        (worker(ports=[{"containerPort": True}]), f"{WORKER}.ports[0].containerPort"),
        ({"spec": {"volumes": [None]}}, "template.spec.volumes[0]"),
        ({"spec": {"nodeSelector": "x"}}, "template.spec.nodeSelector"),
        (worker(resources=5), f"{WORKER}.resources"),
        (worker(resources={"requests": {"cpu": "many"}}), f"{WORKER}.resources.requests.cpu"),
        (worker(resources={"limits": {"cpu": True}}), f"{WORKER}.resources.limits.cpu"),
        (worker(env={"A": "b"}), f"{WORKER}.env"),
        (worker(securityContext={"capabilities": {"add": "SYS_PTRACE"}}), f"{WORKER}.securityContext.capabilities.add"),
    ],
)
def test_what_no_pod_has(template: dict[str, Any], place: str) -> None:
    assert places(template) == [place]


@pytest.mark.parametrize(
    "template",
    [
        {},
        {"metadata": None, "spec": None},
        worker(resources=None, securityContext={"capabilities": None}, env=None),
        worker(resources={"requests": {"cpu": "100u", "memory": 1.5, "nvidia.com/gpu": 8}}),
        {"spec": {"affinity": {"whatever": [1]}, "containers": None}},
    ],
)
def test_what_is_empty_or_not_ours_to_judge(template: dict[str, Any]) -> None:
    assert places(template) == []
