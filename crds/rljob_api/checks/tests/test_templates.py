"""Tests of what a pod template may and may not change."""

import json

import pytest

from rljob_api.tests.builders import problems


def template(value):
    return f"workerGroups=[{{name: train, template: {json.dumps(value)}}}]"


def worker(**fields):
    return {"spec": {"containers": [{"name": "worker", **fields}]}}


ALLOWED = [
    {},
    {"metadata": {"labels": {"team": "rl"}, "annotations": {"sidecar.istio.io/inject": "false"}}},
    worker(image="mine:1", resources={"requests": {"cpu": "4"}}, env=[{"name": "NCCL_DEBUG", "value": "INFO"}]),
    {"spec": {"containers": [{"name": "profiler", "image": "nsys:1"}], "nodeSelector": {"pool": "a"}}},
    {"spec": {"initContainers": [{"name": "data-buffer", "image": "mine:1"}], "hostNetwork": True}},
    worker(image="registry.example:5000/mine@sha256:" + "0f" * 32),
    {"spec": {"volumes": [{"name": "runs", "emptyDir": {"sizeLimit": "10Gi"}}]}},
]

REFUSED = [
    ({"spec": {"hostname": "me"}}, ".spec.hostname", "pods find each other by it"),
    ({"spec": {"subdomain": "me"}}, ".spec.subdomain", "pods find each other by it"),
    ({"spec": {"restartPolicy": "Always"}}, ".spec.restartPolicy", "spec.failurePolicy"),
    ({"spec": {"restartPolicy": "Always"}}, ".spec.restartPolicy", "all of them together"),
    ({"spec": {"terminationGracePeriodSeconds": 5}}, ".terminationGracePeriodSeconds", "the operator counts with it"),
    ({"spec": {"priorityClassName": "high"}}, ".spec.priorityClassName", "the whole gang has one"),
    ({"spec": {"terminationGracePeriodSeconds": 5}}, ".terminationGracePeriodSeconds", "terminationGraceSeconds"),
    ({"spec": {"priorityClassName": "high"}}, ".spec.priorityClassName", "spec.scheduling.priorityClassName"),
    ({"metadata": {"name": "me"}}, ".metadata.name", "labels and annotations only"),
    ({"metadata": {"labels": {"rljob.dev/job": "x"}}}, ".metadata.labels", "Choose another label"),
    (worker(env=[{"name": "RLJOB_PLAN", "value": "x"}]), ".containers[0].env[0].name", "which one it is"),
    (worker(image="mine@sha256:0f"), ".containers[0].image", "NAME@sha256: with 64 digits"),
    ({"spec": {"containers": [{"image": "x"}]}}, ".containers[0]", "has a name"),
    ({"spec": {"containers": [{"name": "data-buffer"}]}}, ".containers[0].name", "initContainers"),
    ({"spec": {"initContainers": [{"name": "data-buffer", "restartPolicy": "Never"}]}}, ".restartPolicy", "sidecar"),
    ({"spec": {"initContainers": [{"name": "worker"}]}}, ".initContainers[0].name", "one of containers"),
    ({"spec": {"containers": [{"name": "service"}]}}, ".containers[0].name", "Write data-buffer or worker"),
    *(
        ({"spec": {"volumes": [{"name": name, "emptyDir": {}}]}}, ".volumes[0].name", "meet on the volume")
        for name in ("plan", "token", "tls", "socket", "arena")
    ),
    ({"sepc": {}}, ".sepc", "Did you mean spec?"),
    ({"spec": "x"}, ".spec", "not a mapping"),
]


@pytest.mark.parametrize("value", ALLOWED)
def test_a_template_may_change_what_does_not_make_the_gang(value):
    assert problems(template(value)) == []


@pytest.mark.parametrize(("value", "path", "words"), REFUSED)
def test_a_template_may_not_change_what_makes_the_gang(value, path, words):
    (problem,) = problems(template(value))
    assert problem.path.startswith("spec.workerGroups[0].template")
    assert problem.path.endswith(path)
    assert words in str(problem)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("RLJOB_ATTEMPT", "which one it is"),
        ("RLJOB_FORK_ROOT", "how rljob's processes inform each other"),
        ("RLJOB_FORK_WORKER", "Did you mean RLJOB_FORK_WORKERS?"),
        ("RANK", "a rank of its own"),
        ("MASTER_ADDR", "a rank of its own"),
    ],
)
def test_a_job_may_not_say_who_its_workers_are(name, words):
    (problem,) = problems(f"env=[{{name: {name}, value: '7'}}]")
    assert (problem.path, problem.found) == ("spec.env[0].name", f'"{name}"')
    assert words in str(problem)


def test_a_job_may_say_how_its_workers_start_and_name_variables_of_its_own():
    assert problems("env=[{name: RLJOB_FORK_WORKERS, value: 'off'}, {name: RANKING, value: '1'}]") == []


def of_service(**fields):
    group = {"template": {"spec": {"containers": [{"name": "service", **fields}]}}}
    return f"services={json.dumps([{'name': 'judge', 'run': 'mine:app', 'workerGroup': group}])}"


def test_a_services_template_may_change_what_it_runs_on():
    assert problems(of_service(image="mine:1", resources={"requests": {"memory": "8Gi"}})) == []


@pytest.mark.parametrize(
    ("fields", "path", "words"),
    [
        ({"name": "worker"}, ".name", "Write service, or give a container of your own another name."),
        ({"env": [{"name": "RLJOB_PLAN", "value": "x"}]}, ".env[0].name", "which one it is"),
        ({"image": "mine@sha256:0f"}, ".image", "NAME@sha256: with 64 digits"),
    ],
)
def test_a_services_template_may_not_change_who_it_is(fields, path, words):
    (problem,) = problems(of_service(**fields))
    assert problem.path == f"spec.services[0].workerGroup.template.spec.containers[0]{path}"
    assert words in f"{problem.message}. {problem.fix}"
