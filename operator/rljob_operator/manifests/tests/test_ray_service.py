"""Models as RayServices of KubeRay."""

import json
import shlex

import pytest

from rljob_api.vocabulary import keys
from rljob_operator.manifests.ceilings import Ceilings
from rljob_operator.manifests.children import pod_security_problem, static_children
from rljob_operator.manifests.context import Placement
from rljob_operator.manifests.serving.ray_service import PLACES, ray_services
from rljob_operator.manifests.tests.builders import env_of, make_context, named
from rljob_operator.manifests.violations import job_violations

SHIPPED = {"run": "rljob_worker.services:reward_model", "options": {"path": "m"}}


def context_of(*overrides, settings=None, **fields):
    service = {"name": "my_judge", "run": "mine:app", **fields}
    return make_context(
        f"services={json.dumps([service])}", *overrides, settings={"rayServices": True, **(settings or {})}
    )


def made(context, placements=None):
    (result,) = ray_services(context, {"my_judge": 2}, placements=placements)
    return result


def cluster_of(context, **more):
    return made(context, **more)["spec"]["rayClusterConfig"]


def pods_of(context, **more):
    """The templates of the head and of a copy."""
    cluster = cluster_of(context, **more)
    return cluster["headGroupSpec"]["template"], cluster["workerGroupSpecs"][0]["template"]


def container_of(template):
    return named(template["spec"]["containers"], "service")


@pytest.mark.parametrize(
    ("fields", "copies", "places"),
    [
        ({**SHIPPED, "workerGroup": {"replicas": 3}}, 3, "1"),
        ({**SHIPPED, "autoscaling": {"minReplicas": 1, "maxReplicas": 4}}, 4, "1"),
        # it says itself how many copies there are, and all of them are in one pod
        ({}, 1, str(PLACES)),
    ],
)
def test_every_copy_of_a_shipped_model_has_a_pod(fields, copies, places):
    (group,) = cluster_of(context_of(**fields))["workerGroupSpecs"]
    assert [group[item] for item in ("replicas", "minReplicas", "maxReplicas")] == [copies] * 3
    assert group["rayStartParams"]["num-cpus"] == places


def test_a_pod_asks_for_one_copy_and_the_head_for_none():
    group = {"replicas": 2, "accelerator": {"count": 3}}
    context = context_of(settings={"worker": {"cpu": "500m", "memory": "1Gi"}}, **SHIPPED, workerGroup=group)
    head, copy = pods_of(context)
    assert container_of(copy)["resources"] == {"requests": {"cpu": "1500m", "memory": "3072Mi"}}
    assert container_of(head)["resources"] == {"requests": {"cpu": "500m", "memory": "2048Mi"}}
    assert cluster_of(context)["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"


def test_the_users_template_is_over_both_but_only_a_copy_has_its_resources():
    container = {"name": "service", "image": "mine:1", "resources": {"requests": {"cpu": "4"}}}
    spec = {"containers": [container], "nodeSelector": {"x": "y"}}
    template = {"metadata": {"annotations": {"a": "b"}}, "spec": spec}
    head, copy = pods_of(context_of(**SHIPPED, workerGroup={"replicas": 2, "template": template}))
    for item in (head, copy):
        assert item["spec"]["nodeSelector"] == {"x": "y"} and item["metadata"]["annotations"] == {"a": "b"}
        assert container_of(item)["image"] == "mine:1"
    assert container_of(copy)["resources"]["requests"]["cpu"] == "4"
    assert container_of(head)["resources"]["requests"]["cpu"] == "500m"
    assert env_of(container_of(copy))["OMP_NUM_THREADS"] == "4", "a template asks for one copy here"


def test_ray_serve_is_configured_with_the_whole_service():
    context = context_of(options={"scale": 2.0}, healthSeconds=30.0)
    config = json.loads(made(context)["spec"]["serveConfigV2"])
    assert config["http_options"] == {"host": "0.0.0.0", "port": keys.PORT_SERVICE}
    (application,) = config["applications"]
    assert (application["name"], application["route_prefix"]) == ("my_judge", "/my_judge")
    assert application["args"]["service"] == context.spec.services[0].to_json()


def test_copies_are_found_where_workers_ask_and_the_head_is_not():
    context = context_of(**SHIPPED)
    head, copy = pods_of(context)
    assert (copy["spec"]["hostname"], copy["spec"]["subdomain"]) == ("my-judge", "rljob-services-small")
    (domain,) = (
        static_child
        for static_child in static_children(context)
        if static_child["metadata"]["name"] == "rljob-services-small"
    )
    assert domain["spec"]["selector"].items() <= copy["metadata"]["labels"].items()
    assert not domain["spec"]["selector"].items() <= head["metadata"]["labels"].items()
    for item in (head, copy):
        assert item["metadata"]["labels"][keys.LABEL_MANAGED_BY] == keys.MANAGED_BY_VALUE, "policies look at it"


def test_strangers_meet_the_gate_in_every_pod_and_no_plan_is_needed():
    for pod in pods_of(context_of(**SHIPPED)):
        container = container_of(pod)
        env = env_of(container)
        assert env["RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"] == "rljob_worker.services.gate:middlewares"
        for name in (keys.ENV_SERVICES_TOKEN_FILE, keys.ENV_SERVICES_SCRATCH):
            assert any(env[name].startswith(mount["mountPath"]) for mount in container["volumeMounts"]), name
        assert not any("configMap" in volume for volume in pod["spec"]["volumes"]), "one that may be gone by then"
    assert cluster_of(context_of(**SHIPPED))["authOptions"] == {"mode": "token"}


def test_a_queue_says_where_head_and_copies_run():
    placements = {
        "service-my-judge": Placement({"pool": "gpu"}, labels={"podset": "c"}),
        "service-my-judge--head": Placement({"pool": "cpu"}, scheduling_gates=("g",)),
    }
    head, copy = pods_of(context_of(**SHIPPED), placements=placements)
    assert (head["spec"]["nodeSelector"], copy["spec"]["nodeSelector"]) == ({"pool": "cpu"}, {"pool": "gpu"})
    assert copy["metadata"]["labels"]["podset"] == "c" and head["spec"]["schedulingGates"] == [{"name": "g"}]


def test_one_with_a_changed_text_gets_no_second_ray_beside_it():
    result = made(context_of(**SHIPPED))
    assert result["spec"]["upgradeStrategy"] == {"type": "None"}
    assert result["metadata"]["labels"][keys.LABEL_SERVICE] == "my_judge"
    assert result["metadata"]["ownerReferences"][0]["kind"] == "RLJob"


def test_pods_of_models_reach_each_other_and_kube_ray_reaches_them():
    peer = {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "kuberay-operator"}}}
    policy = {"enabled": True, "kubeRayFrom": [peer]}
    context = context_of(settings={"networkPolicy": policy}, **SHIPPED)
    policies = [static_child for static_child in static_children(context) if static_child["kind"] == "NetworkPolicy"]
    assert [policy["metadata"]["name"] for policy in policies] == ["small", "rljob-services-small"]
    inside, outside = policies[1]["spec"]["ingress"]
    assert inside == {"from": [{"podSelector": policies[1]["spec"]["podSelector"]}]}
    assert outside["from"] == [peer] and [item["port"] for item in outside["ports"]] == [8265, 8816]
    (choice,) = policies[1]["spec"]["podSelector"]["matchExpressions"]
    components = [pod["metadata"]["labels"][keys.LABEL_COMPONENT] for pod in pods_of(context)]
    assert sorted(components) == sorted(choice["values"])
    closed = context_of(settings={"networkPolicy": {"enabled": True}}, **SHIPPED)
    (_, only) = (static_child for static_child in static_children(closed) if static_child["kind"] == "NetworkPolicy")
    assert len(only["spec"]["ingress"]) == 1


def test_what_keeps_pods_out_holds_for_those_that_kube_ray_makes():
    root = {"spec": {"containers": [{"name": "service", "securityContext": {"runAsUser": 0}}]}}
    context = context_of("podSecurity=Privileged", **SHIPPED, workerGroup={"template": root})
    words = "service my_judge: container service runs as root, which podSecurity: Restricted forbids"
    assert job_violations(Ceilings(pod_security="Restricted"), context) == [words], "once, for head and copies"
    problem = pod_security_problem(context, {"pod-security.kubernetes.io/enforce": "restricted"})
    assert problem is not None and problem.startswith("services[0] my_judge with profile cpu needs what namespace team")
    assert pod_security_problem(context_of(**SHIPPED), {"pod-security.kubernetes.io/enforce": "restricted"}) is None


def on(profile, count):
    return {"replicas": 3, "accelerator": {"profile": profile, "count": count}}


def test_each_copy_has_its_accelerators_and_the_head_none():
    context = context_of(**SHIPPED, workerGroup=on("nvidia-h100", 2))
    head, copy = pods_of(context)
    assert container_of(copy)["resources"]["limits"] == {"nvidia.com/gpu": "2"}, "of one copy"
    assert copy["spec"]["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    assert "limits" not in container_of(head)["resources"] and "nodeSelector" not in head["spec"]
    # what is imported in the head is made for the copies' image
    assert container_of(head)["image"] == container_of(copy)["image"] == "rljob-serve-cuda:dev"
    (group,) = cluster_of(context)["workerGroupSpecs"]
    assert (group["replicas"], group["rayStartParams"]["num-gpus"]) == (3, "2")
    assert "num-gpus" not in cluster_of(context)["headGroupSpec"]["rayStartParams"]


def test_ray_is_started_with_its_name_of_other_accelerators_in_shell_quotes():
    site = {"gaudi": {"serveImage": "hpu:1"}}
    service = {"name": "my_judge", **SHIPPED, "workerGroup": on("gaudi", 4)}
    overrides = (f"services={json.dumps([service])}", "podSecurity=Privileged")
    context = make_context(*overrides, settings={"rayServices": True}, profiles=site)
    (group,) = cluster_of(context)["workerGroupSpecs"]
    assert shlex.split(group["rayStartParams"]["resources"]) == ['{"HPU": 4}']
    assert "num-gpus" not in group["rayStartParams"]
    assert container_of(group["template"])["resources"]["limits"]["habana.ai/gaudi"] == "4"


def test_a_copy_is_configured_with_its_device_where_there_is_no_plan():
    context = context_of(**SHIPPED, workerGroup=on("nvidia-h100", 2))
    (application,) = json.loads(made(context)["spec"]["serveConfigV2"])["applications"]
    assert application["args"]["plan"] == context.plan.service("my_judge").to_json()
    assert application["args"]["plan"]["device"] == "cuda"


def test_a_vendors_annotations_say_how_many_copies_start():
    site = {"nvidia": {"annotations": {"vendor.example/min": "{pods}"}}}
    service = {"name": "my_judge", **SHIPPED, "workerGroup": on("nvidia", 1)}
    context = make_context(f"services={json.dumps([service])}", settings={"rayServices": True}, profiles=site)
    head, copy = pods_of(context)
    assert copy["metadata"]["annotations"] == {"vendor.example/min": "3"} and head["metadata"]["annotations"] == {}
