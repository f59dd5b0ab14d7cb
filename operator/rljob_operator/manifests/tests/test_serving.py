"""Tests of the manifests of pods that serve models."""

import json

import pytest

from rljob_api.vocabulary import keys
from rljob_operator.manifests.ceilings import Ceilings
from rljob_operator.manifests.children import child_problems, pod_security_problem, static_children
from rljob_operator.manifests.context import Placement
from rljob_operator.manifests.serving.pod import service_pods
from rljob_operator.manifests.tests.builders import env_of, make_context, named, one_group
from rljob_operator.manifests.violations import job_violations

ROOT = {"spec": {"containers": [{"name": "service", "securityContext": {"runAsUser": 0}}]}}


def context_of(*overrides, settings=None, **fields):
    service = {"name": "judge", "run": "mine:app", **fields}
    return make_context(f"services={json.dumps([service])}", *overrides, settings=settings)


def container_of(context):
    (pod,) = service_pods(context, {"judge": 1})
    return named(pod["spec"]["containers"], "service")


def shipped(**fields):
    return {"run": "rljob_worker.services:reward_model", "options": {"path": "m"}, **fields}


@pytest.mark.parametrize(
    ("fields", "cpu", "memory"),
    [
        ({}, "500m", "1024Mi"),
        ({"workerGroup": {"accelerator": {"count": 3}}}, "1500m", "3072Mi"),
        (shipped(workerGroup={"replicas": 2, "accelerator": {"count": 3}}), "3000m", "6144Mi"),
        (shipped(autoscaling={"maxReplicas": 4}), "2000m", "4096Mi"),
    ],
)
def test_a_models_pod_asks_for_all_its_copies(fields, cpu, memory):
    container = container_of(context_of(settings={"worker": {"cpu": "500m", "memory": "1Gi"}}, **fields))
    assert container["resources"] == {"requests": {"cpu": cpu, "memory": memory}}


@pytest.mark.parametrize(
    ("requests", "threads"),
    # by default 3 CPUs for one copy; of 9 that a template asks for, each of two copies has 4.5
    [(None, "3"), ({"cpu": 9}, "4"), ({"cpu": "100m"}, "1")],
)
def test_a_copy_has_the_threads_of_its_share(requests, threads):
    group = {"accelerator": {"count": 3}}
    if requests is not None:
        template = {"spec": {"containers": [{"name": "service", "resources": {"requests": requests}}]}}
        group |= {"replicas": 2, "template": template}
    assert env_of(container_of(context_of(**shipped(workerGroup=group))))["OMP_NUM_THREADS"] == threads


def test_a_models_container_gets_the_environment_that_the_supervisor_sets_on_one_machine():
    container = container_of(context_of("env=[{name: HF_ENDPOINT, value: 'https://mirror.example'}]"))
    assert container["command"][-3:] == ["rljob_worker.services", "8816", "judge"]
    env = env_of(container)
    assert env["HF_ENDPOINT"] == "https://mirror.example" and env[keys.ENV_LISTEN] == "0.0.0.0"
    for name in (keys.ENV_PLAN, keys.ENV_SERVICES_TOKEN_FILE, keys.ENV_SERVICES_SCRATCH):
        assert any(env[name].startswith(mount["mountPath"]) for mount in container["volumeMounts"]), name
    assert keys.ENV_GROUP not in env and keys.ENV_TOKEN_FILE not in env, "it is not a worker"


def test_probes_wait_longer_than_the_process_waits_itself():
    """It says why it gives up; a probe does not."""
    probe = container_of(context_of(healthSeconds=1000.0))["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] == 1300
    assert probe["httpGet"] == {"path": "/-/readyz", "port": "http"}


def test_a_queue_says_where_a_model_runs():
    (pod,) = service_pods(
        context_of(), {"judge": 2}, placements={"service-judge": Placement({"pool": "spot"}, scheduling_gates=("g",))}
    )
    assert (pod["metadata"]["name"], pod["spec"]["nodeSelector"]) == ("small-judge-r2", {"pool": "spot"})
    assert pod["spec"]["schedulingGates"] == [{"name": "g"}]


def test_a_job_without_services_has_no_domain_for_them():
    kinds = [
        static_child["metadata"]["name"]
        for static_child in static_children(make_context())
        if static_child["kind"] == "Service"
    ]
    assert kinds == ["small"]
    kinds = [
        static_child["metadata"]["name"]
        for static_child in static_children(context_of())
        if static_child["kind"] == "Service"
    ]
    assert kinds == ["small", "rljob-services-small"]


def test_ceilings_hold_for_models_too():
    context = context_of("podSecurity=Privileged", workerGroup={"template": ROOT})
    words = "service judge: container service runs as root, which podSecurity: Restricted forbids"
    assert job_violations(Ceilings(pod_security="Restricted"), context) == [words]
    assert job_violations(Ceilings(images=("rljob-worker", "rljob-databuffer")), context) == [
        "service judge: image rljob-serve:dev of container service: allowed are rljob-worker, rljob-databuffer (images)"
    ]


def test_a_model_that_the_namespace_would_not_admit_is_named():
    context = context_of("podSecurity=Privileged", workerGroup={"template": ROOT})
    problem = pod_security_problem(context, {"pod-security.kubernetes.io/enforce": "restricted"})
    assert problem is not None and problem.startswith("services[0] judge with profile cpu needs what namespace team")


def on(profile, count=2, **group):
    return {"accelerator": {"profile": profile, "count": count}, **group}


def test_a_model_on_accelerators_asks_for_them_and_stands_where_they_are():
    (pod,) = service_pods(context_of(**shipped(workerGroup=on("nvidia-h100", replicas=3))), {"judge": 1})
    container = named(pod["spec"]["containers"], "service")
    # two for each of three copies
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "6"}
    assert container["resources"]["requests"]["nvidia.com/gpu"] == "6"
    assert pod["spec"]["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in pod["spec"]["tolerations"]
    assert container["image"] == "rljob-serve-cuda:dev"


def test_a_vendors_labels_annotations_and_drivers_come_with_a_model():
    site = {"ascend-910": {"serveImage": "npu:1", "schedulers": []}}
    service = {"name": "judge", "run": "mine:app", "workerGroup": on("ascend-910", 4)}
    context = make_context(f"services={json.dumps([service])}", "podSecurity=Privileged", profiles=site)
    (pod,) = service_pods(context, {"judge": 1})
    container = named(pod["spec"]["containers"], "service")
    assert container["image"] == "npu:1"
    assert pod["metadata"]["labels"]["ring-controller.atlas"] == "ascend-910b"
    assert pod["metadata"]["annotations"]["huawei.com/schedule_minAvailable"] == "1", "its pod alone"
    assert "ascend-driver" in [volume["name"] for volume in pod["spec"]["volumes"]]
    assert env_of(container)["HCCL_CONNECT_TIMEOUT"] == "1200"
    assert container["resources"]["limits"] == {"huawei.com/Ascend910": "4"}


def test_a_model_on_a_device_for_which_we_have_no_image_needs_one():
    service = {"name": "judge", "run": "mine:app", "workerGroup": on("gaudi", 2)}
    own = {"spec": {"containers": [{"name": "service", "image": "mine:1"}]}}

    def result(profiles=None, **group):
        given = {**service, "workerGroup": {**service["workerGroup"], **group}}
        return child_problems(make_context(f"services={json.dumps([given])}", profiles=profiles))

    assert result() == [
        "spec.services[0].workerGroup.accelerator.profile gaudi: no service image for hpu; set "
        "acceleratorProfiles.gaudi.serveImage in the chart's values, or image of container service in the group's "
        "template"
    ]
    # that of workers has no Ray
    assert len(result({"gaudi": {"image": "hpu:1"}})) == 1
    assert result({"gaudi": {"serveImage": "hpu:1"}}) == result(template=own) == []


def test_accelerators_of_models_count_against_the_ceiling_like_those_of_workers():
    service = {"name": "judge", **shipped(workerGroup=on("nvidia", replicas=2))}
    overrides = (one_group("nvidia", 4), f"services={json.dumps([service])}")
    for settings in ({}, {"rayServices": True}):
        context = make_context(*overrides, settings=settings)
        assert job_violations(Ceilings(accelerators=8), context) == []
        (result,) = job_violations(Ceilings(accelerators=7), context)
        assert result == "8 accelerators (8 nvidia.com/gpu), and a job may have 7 (accelerators)"
