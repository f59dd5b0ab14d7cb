"""Tests of the pod groups of Volcano, coscheduling and Kubernetes."""

import json

from rljob_api.vocabulary.quantity import amount
from rljob_operator.gangs.pod_groups import Coscheduling, Native, Volcano, attempt_of, pod_group, total_requests
from rljob_operator.manifests import pods
from rljob_operator.manifests.metadata import metadata
from rljob_operator.manifests.tests.builders import TWO_GROUPS, make_context, one_group

VOLCANO, COSCHEDULING = "scheduling.volcano.sh/v1beta1", "scheduling.x-k8s.io/v1alpha1"


def test_volcano_gets_a_group_of_all_pods_and_pods_that_name_it():
    context = make_context(TWO_GROUPS, "scheduling={queue: rl, priorityClassName: high}")
    (group,) = Volcano().objects(context, 2)
    assert (group["apiVersion"], group["metadata"]["name"]) == (VOLCANO, "small-a2")
    spec = group["spec"]
    assert (spec["minMember"], spec["minTaskMember"]) == (6, {"train": 2, "rollout": 4})
    assert (spec["queue"], spec["priorityClassName"]) == ("rl", "high")
    assert spec["minResources"] == total_requests(context)
    pod = Volcano().shape(context, pods(context, 2)[5])
    assert pod["spec"]["schedulerName"] == "volcano"
    assert pod["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == "small-a2"
    assert pod["metadata"]["annotations"]["volcano.sh/task-spec"] == "rollout"


def test_ascends_labels_stand_on_the_group_too():
    (group,) = Volcano().objects(make_context(one_group("ascend-910", 2, 4)), 1)
    assert group["metadata"]["labels"]["ring-controller.atlas"] == "ascend-910b"
    assert group["metadata"]["annotations"]["huawei.com/schedule_minAvailable"] == "4"


def test_coscheduling_gets_a_group_with_a_deadline():
    context = make_context(TWO_GROUPS, "scheduling.timeoutSeconds=60")
    (group,) = Coscheduling().objects(context, 1)
    assert group["apiVersion"] == COSCHEDULING
    assert (group["spec"]["minMember"], group["spec"]["scheduleTimeoutSeconds"]) == (6, 60)
    pod = Coscheduling().shape(context, pods(context, 1)[0])
    assert pod["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] == "small-a1"
    assert pod["spec"]["schedulerName"] == "scheduler-plugins-scheduler"


def test_the_native_api_gets_a_gang_and_one_topology_key():
    context = make_context(one_group(replicas=2, topology={"required": "rack"}))
    (group,) = Native().objects(context, 1)
    assert group["spec"] == {
        "schedulingPolicy": {"gang": {"minCount": 2}},
        "schedulingConstraints": {"topology": [{"key": "rack"}]},
    }
    pod = Native().shape(context, pods(context, 1)[0])
    assert pod["spec"]["schedulingGroup"] == {"podGroupName": "small-a1"}
    (group,) = Native().objects(make_context("scheduling.priorityClassName=high"), 1)
    assert group["spec"]["priorityClassName"] == "high"


def test_minimum_resources_are_those_of_all_pods_and_sidecars():
    # 2 hosts: each 8 devices, 8 CPUs and 16 GiB for workers, 250m and 1 GiB + 512 MiB for the data buffer
    totals = total_requests(make_context("data.batchSize=16", one_group("nvidia", 8, 2)))
    assert totals == {"cpu": "16500m", "memory": str(2 * (16 * 1024 + 1536) * 1024**2), "nvidia.com/gpu": "16"}


def test_a_pod_group_is_the_jobs_and_of_one_attempt():
    context = make_context(TWO_GROUPS)
    assert pod_group(context, 3, "example.com/v1", {"minMember": 6}) == {
        "apiVersion": "example.com/v1",
        "kind": "PodGroup",
        "metadata": metadata(context, "small-a3", "pod-group", {"rljob.dev/attempt": "3"}),
        "spec": {"minMember": 6},
    }
    assert context.num_pods == 6
    assert [attempt_of(item) for item in (pods(context, 3)[0], pod_group(context, 12, "v1", {}))] == [3, 12]


def test_requests_add_up_over_groups_and_count_what_runs_beside_a_worker():
    """An init container has ended when the worker begins; what is limited and not asked for is asked for."""
    init = {"name": "fetch", "image": "busybox", "resources": {"requests": {"cpu": "64"}}}
    sidecar = {**init, "name": "proxy", "restartPolicy": "Always", "resources": {"limits": {"example.com/nic": "1"}}}
    logger = {"name": "logger", "image": "busybox", "resources": {"requests": {"cpu": "1500m"}, "limits": {"cpu": "8"}}}
    plain = total_requests(make_context(TWO_GROUPS))
    spec = {"initContainers": [init, sidecar], "containers": [logger]}
    template = json.dumps({"spec": spec})
    groups = f"workerGroups=[{{name: train, replicas: 2, template: {template}}}, {{name: rollout, replicas: 4}}]"
    totals = total_requests(make_context(groups))
    # six pods as before; with the two of them that have more: 2 x 1500m of CPU, 2 x 1 device
    assert amount(totals["cpu"]) - amount(plain["cpu"]) == 3
    assert (totals["example.com/nic"], totals["memory"]) == ("2", plain["memory"])
    assert list(totals) == sorted(totals)
