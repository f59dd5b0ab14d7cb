import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_operator.manifests import pods
from rljob_operator.manifests.gang.coscheduling import Coscheduling
from rljob_operator.manifests.gang.gang import AdmissionState
from rljob_operator.manifests.gang.native import Native
from rljob_operator.manifests.gang.none import Ungrouped
from rljob_operator.manifests.gang.pod_groups import amount, total_requests
from rljob_operator.manifests.gang.select import Unserved, select
from rljob_operator.manifests.gang.volcano import Volcano
from rljob_operator.manifests.tests.builders import TWO_GROUPS, make_context, one_group

KUEUE, VOLCANO = "kueue.x-k8s.io/v1beta2", "scheduling.volcano.sh/v1beta1"
COSCHEDULING, NATIVE = "scheduling.x-k8s.io/v1alpha1", "scheduling.k8s.io/v1beta1"
EVERYTHING = {KUEUE, VOLCANO, COSCHEDULING, NATIVE}
QUEUE = {"kueue.x-k8s.io/queue-name": "rl"}


@pytest.mark.parametrize(
    ("served", "labels", "native", "provider"),
    [
        (set(), None, False, "None"),
        (EVERYTHING, QUEUE, False, "Kueue"),
        (EVERYTHING, None, True, "Native"),
        (EVERYTHING, None, False, "Volcano"),
        ({COSCHEDULING, KUEUE}, None, False, "Coscheduling"),
        ({KUEUE}, None, True, "None"),
    ],
)
def test_auto_takes_what_the_cluster_has(served, labels, native, provider):
    context = make_context(labels=labels, settings={"gang": {"native": native}})
    assert select(context, served).provider == provider


def test_auto_takes_what_the_accelerator_needs():
    context = make_context(one_group("ascend-910", 8))
    assert select(context, EVERYTHING).provider == "Volcano"
    with pytest.raises(Unserved, match=f"provider Volcano: the cluster does not serve {VOLCANO}; install Volcano"):
        select(context, set())


def test_what_the_accelerator_does_not_work_with_is_refused():
    context = make_context(one_group("ascend-910", 8), "scheduling.provider=Coscheduling")
    with pytest.raises(Unserved, match="profile ascend-910 needs scheduling.provider Volcano, and the job gets Cosche"):
        select(context, EVERYTHING)


@pytest.mark.parametrize("provider", ["Kueue", "Volcano", "Coscheduling", "Native"])
def test_a_provider_that_is_not_served_is_refused(provider):
    with pytest.raises(Unserved, match=f"provider {provider}: the cluster does not serve"):
        select(make_context(f"scheduling.provider={provider}"), set())


def test_the_native_api_has_a_gate():
    context = make_context("scheduling.provider=Native")
    with pytest.raises(Unserved, match="pods.gang.native"):
        select(context, EVERYTHING)


@pytest.mark.parametrize(("served", "version"), [({KUEUE}, "v1beta2"), ({"kueue.x-k8s.io/v1beta1"}, "v1beta1")])
def test_kueue_is_spoken_to_in_the_version_it_serves(served, version):
    gang = select(make_context("scheduling.provider=Kueue"), served)
    assert gang.kinds == ((f"kueue.x-k8s.io/{version}", "Workload"),)


def test_without_a_gang_scheduler_nothing_is_made_or_changed():
    context, gang = make_context(), Ungrouped()
    (pod,) = pods(context, 1)
    assert gang.objects(context, 1) == [] and gang.shape(context, pod) == pods(context, 1)[0]
    assert gang.admission([]).state is AdmissionState.ADMITTED


def test_volcano_gets_a_group_of_all_pods_and_pods_that_name_it():
    context = make_context(TWO_GROUPS, "scheduling={queue: rl, priorityClassName: high}")
    (group,) = Volcano().objects(context, 2)
    assert (group["apiVersion"], group["metadata"]["name"]) == (VOLCANO, "small-a2")
    spec = group["spec"]
    assert (spec["minMember"], spec["minTaskMember"]) == (6, {"train": 2, "rollout": 4})
    assert (spec["queue"], spec["priorityClassName"]) == ("rl", "high")
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


def test_minimum_resources_are_those_of_all_pods_and_sidecars():
    # 2 hosts: each 8 devices, 8 CPUs and 16 GiB for workers, 250m and 1 GiB + 512 MiB for the data buffer
    totals = total_requests(make_context("data.batchSize=16", one_group("nvidia", 8, 2)))
    assert totals == {"cpu": "16500m", "memory": str(2 * (16 * 1024 + 1536) * 1024**2), "nvidia.com/gpu": "16"}


@pytest.mark.parametrize(("text", "value"), [("500m", 0.5), ("2", 2), ("1.5Gi", 1.5 * 2**30), ("3k", 3000), (4, 4)])
def test_quantities(text, value):
    assert float(amount(text)) == value


@given(st.integers(0, 10**6))
def test_thousandths_and_units_agree(number):
    assert amount(f"{number}m") * 1000 == amount(str(number))
